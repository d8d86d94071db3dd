"""The command `demo`, a module for each story that it tells."""
