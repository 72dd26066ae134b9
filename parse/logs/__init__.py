"""Readers of the logs that other systems print, one file per format, listed in `formats`."""
