"""The orphan scan: ledgers without a reference, a plan to delete them, and its guards. Pure, or over ports."""
