"""Makes a set of JPEG photographs offline, for runs that read real input."""
