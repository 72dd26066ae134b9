"""Traces of single operations of pipeline-parallel training: what a step would take without stragglers."""
