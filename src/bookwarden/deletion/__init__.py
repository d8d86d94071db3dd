"""Two-phase deletion: marking ledgers, and deciding what becomes of each mark."""
