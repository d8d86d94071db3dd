"""The move of Pulsar's metadata to another store: whether the copy is what it was copied from."""
