"""Bookies: their protocol, and the entries that they hold."""
