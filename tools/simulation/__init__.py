"""Runs that nobody made: steps of many ranks, drawn from what was measured or stated, as traces."""
