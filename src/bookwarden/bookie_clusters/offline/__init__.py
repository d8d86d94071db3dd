"""The move of all ledgers to another bookie cluster for brokers without the jar, which are stopped meanwhile."""
