"""ZooKeeper as a metadata store."""
