"""Green made ready for the clients of blue, and blue kept from deleting what they leave."""
