"""bookwarden: the warden of BookKeeper's ledgers."""
