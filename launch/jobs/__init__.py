"""Jobs: which runs each has, its script, its site."""
