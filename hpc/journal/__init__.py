"""A rank's stamps in memory-mapped node-local files, so that a rank that dies leaves the steps it completed.

docs/recovery.md tells the whole way.
"""
