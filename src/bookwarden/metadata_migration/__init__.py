"""The move of Pulsar's metadata to another store: prepared, rehearsed, watched, and its copy verified."""
