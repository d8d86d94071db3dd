"""Avro schemas of what travels on topics and stands in tables; the .avsc files are the source of truth."""
