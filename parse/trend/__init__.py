"""The speeds of points over many measurements, and where they change."""
