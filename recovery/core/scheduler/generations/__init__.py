"""Generations: how one ends, what the next one goes back to, and what ranks report of it."""
