"""The parts that every continuous query of bookwarden has: supervisor, lock, signs of life, table of outcomes."""
