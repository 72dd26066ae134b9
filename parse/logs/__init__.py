"""Readers of the logs that other systems print, one file per family, behind the table in `families`."""
