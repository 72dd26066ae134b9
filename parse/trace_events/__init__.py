"""Traces as a timeline: the trace-event format that Perfetto and other viewers read."""
