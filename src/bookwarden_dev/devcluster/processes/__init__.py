"""Server processes, tied to the one that started them."""
