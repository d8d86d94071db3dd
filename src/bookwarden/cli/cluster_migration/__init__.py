"""The commands below `cluster-migration`."""
