"""ZooKeeper's snapshots and transaction logs, as files."""
