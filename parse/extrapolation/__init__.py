"""Speeds at sizes that were not measured, from those that were, with the errors that this had on public series."""
