"""The ledger: why a step takes as long as it does, and why more devices do not make it shorter."""
