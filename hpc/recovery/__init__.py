"""What survives the death of a rank, and how a trace is made of it."""
