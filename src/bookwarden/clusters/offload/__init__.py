"""Stores of offloaded copies: S3, Google Cloud Storage, Azure Blob Storage, file systems."""
