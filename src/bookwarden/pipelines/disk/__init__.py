"""The disk space of ledgers, added up by whose they are and where they lie."""
