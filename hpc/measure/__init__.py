"""Ranks, the clock that they share, and the times that they take."""
