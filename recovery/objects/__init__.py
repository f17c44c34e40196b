"""Checkpoints in object storage: contributions of ranks under keys of their own, and one commit object for each step that is whole.

Nothing is renamed and no listing is believed. What counts is a commit object, which is created once and never written over.

May import: checkpoint and what is below it. Start reading at commits.py; store.py speaks to the storage.
"""
