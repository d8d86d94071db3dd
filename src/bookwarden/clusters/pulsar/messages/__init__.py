"""Messages of the deletion topics: sent, read, decoded."""
