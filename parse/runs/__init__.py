"""Runs, from files: attempts read and reduced to their numbers, and the points that they are of."""
