"""The work of every rank in a run, from the first step to the trace."""
