"""Finds a run that makes no step, has its ranks write where they stand, and ends it."""
