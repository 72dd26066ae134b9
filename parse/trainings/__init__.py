"""Whole trainings in logs, by AI-Rank's four rules: time to train, accuracy, speedup and files."""
