"""The commands `dev` and `demo`, which the command line finds by their entry points."""
