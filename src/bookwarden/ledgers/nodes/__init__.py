"""Namings of nodes, as millions of them are kept."""
