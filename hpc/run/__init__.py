"""What every rank does in a run, from the first step to the trace."""
