"""Released servers, fetched or built into a cache folder."""
