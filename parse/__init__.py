"""Reads what was measured, anywhere: no torch, no MPI, no scheduler."""
