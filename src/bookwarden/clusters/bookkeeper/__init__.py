"""BookKeeper: the place of ledger metadata, its reading and deletion."""
