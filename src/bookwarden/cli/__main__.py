"""`python -m bookwarden.cli` is the console script."""

from bookwarden.cli.main import main

main()
