"""Following the jobs of a sweep."""
