"""The command `disk`, and those below it."""
