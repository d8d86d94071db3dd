"""The brokers' admin REST."""
