"""Blue and green as they are seen before clients are moved."""
