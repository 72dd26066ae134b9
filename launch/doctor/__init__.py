"""Checks that a cluster and its site file fit the planned measurements, and reports the changes they need."""
