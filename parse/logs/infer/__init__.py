"""Reads logs of no declared format: fields by their words, equations between them, and the pattern that they make."""
