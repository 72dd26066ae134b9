"""The types of runs, traces and outcomes, and their files."""
