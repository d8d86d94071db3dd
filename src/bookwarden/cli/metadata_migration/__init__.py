"""Commands about a move of Pulsar's metadata."""
