"""Makes image sets offline, for runs that read real input."""
