"""AI-Rank: time to train, throughput, accuracy and speedup by its rules, and which of them a log breaks."""
