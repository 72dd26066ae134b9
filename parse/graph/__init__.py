"""The steps of ranks in several groups as a graph: their own work between collectives and messages that join them."""
