"""Reads logs of no declared format: what their lines say is seen from words, and believed where fields agree."""
