"""Follow: ledgers and copies that brokers drop by themselves, noted, looked at after a time of grace, and marked."""
