"""Runs while they go on, by the copies of their journals: steps, speed, who is waited for lately; as metrics."""
