"""Measures a training script that knows nothing of it: hooks on torch in its process, steps made of their events."""
