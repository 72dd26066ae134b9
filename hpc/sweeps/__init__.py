"""A sweep from the request to its end: planned, written, submitted, joined, followed, asked about."""
