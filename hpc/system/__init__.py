"""Command lines, external programs, atomic files, texts of others, versions."""
