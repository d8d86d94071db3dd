"""Ledgers and copies that brokers drop by themselves: they leave their last node, and should be gone after a while."""
