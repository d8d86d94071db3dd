"""Phase one: marks, and what leaves the metadata after them."""
