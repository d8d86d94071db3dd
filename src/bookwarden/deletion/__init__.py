"""Two-phase deletion: marking ledgers, and settling each mark."""
