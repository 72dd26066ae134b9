"""Who comes last to the collectives that profilers recorded on all ranks."""
