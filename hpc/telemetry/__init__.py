"""What a helper process beside the ranks of a node reads once a second: clocks, power, load, counters."""
