"""Checkpoint files and their manifests: published atomically, verified before use, never mended, never trusted by name.

May import: config, clock, log, core, errors. Knows no framework: it sees bytes and digests.
Start reading at publish.py (the five steps), then verify.py, then catalogue.py.
"""
