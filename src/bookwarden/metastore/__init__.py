"""Metadata stores: one batch-first interface, one folder for each server."""
