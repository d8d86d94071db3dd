"""Commands below `bookie-clusters`."""
