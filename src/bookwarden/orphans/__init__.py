"""The orphan scan: which ledgers nobody refers to, a plan of what to delete, and its guards. Pure, or over ports."""
