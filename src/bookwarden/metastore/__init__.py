"""Metadata stores: one batch-first interface, one file per implementation."""
