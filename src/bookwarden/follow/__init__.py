"""Follow: ledgers and copies that brokers dereference, recorded, checked after a time of grace, and marked."""
