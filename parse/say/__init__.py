"""What a ledger says: the only place where its figures become sentences."""
