"""How work gets on to a cluster. Knows nothing of training."""
