"""Rules and values of ledgers, without input or output."""
