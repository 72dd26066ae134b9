"""Journals that survive the death of a rank, and the recovery of a trace from them."""
