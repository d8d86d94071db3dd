"""BookKeeper: where ledger metadata lies and how it is read and deleted."""
