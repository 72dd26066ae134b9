"""Whether a cluster and its site file fit what is going to be measured there, and what to write where not."""
