"""Summaries as tables and files."""
