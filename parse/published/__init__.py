"""Published tables and printed results, read from documents into results like any other."""
