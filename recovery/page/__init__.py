"""A job in a browser: one page, what it shows, and the server on loopback that `recovery open` runs."""
