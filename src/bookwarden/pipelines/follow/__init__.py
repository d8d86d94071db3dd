"""Following what brokers drop, as a streaming query: its state in files, its driver, its figures."""
