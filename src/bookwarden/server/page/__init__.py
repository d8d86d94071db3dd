"""The web page of `bookwarden serve`: what is shown, read at most once in ten seconds, and rendered on the server."""
