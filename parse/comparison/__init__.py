"""Two measurements of the same points compared, and measurements compared with a reference."""
