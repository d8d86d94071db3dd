"""Switching of bookie clusters while brokers run: the registry of clusters, and the orders to write to another."""
