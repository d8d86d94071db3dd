"""The rehearsal of a migration."""
