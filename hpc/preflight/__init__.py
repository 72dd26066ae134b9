"""Checks at the start of every run that the job has the resources that were requested."""
