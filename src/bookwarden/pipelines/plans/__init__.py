"""Plans of orphan scans in files."""
