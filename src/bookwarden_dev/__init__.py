"""Real servers on this machine, and what is shown on them: `bookwarden dev`, `bookwarden demo`, and the tests."""
