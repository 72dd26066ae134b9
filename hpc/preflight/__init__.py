"""Looks, at the start of every run, whether the job is what it says it is."""
