"""Programs for people who work on Rankwise."""
