"""The checks before a switch: everything it depends on, observed, tried and judged."""
