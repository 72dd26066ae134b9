"""Turns the lines of any log into speeds."""
