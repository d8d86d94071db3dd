"""References to ledgers, read from the metadata roots."""
