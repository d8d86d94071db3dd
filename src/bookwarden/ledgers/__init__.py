"""Rules and values of ledgers: pure, without input or output."""
