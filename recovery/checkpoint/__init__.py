"""Checkpoint files and their manifests: published atomically, verified before use, never repaired, never trusted by name.

Knows no framework: it sees bytes and digests. May import: config, clock, log, core, errors.
Start reading at publish.py (how a checkpoint comes to be), then verify.py (before every load) and catalogue.py (what is there).
Only retention.py removes checkpoints, by what core/policy/retention.py decides.
"""
