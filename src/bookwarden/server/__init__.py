"""REST: what commands do, over HTTP."""
