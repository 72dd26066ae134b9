"""A sweep: its request, preparation, submission and following, and the status of its runs."""
