"""The worker's machine: its connection to the scheduler, and what its main thread may do when.

Pure. May import the vocabulary beside this package and the policies; nothing of the scheduler's machine.
Start reading in machine.py: `handle(stimulus, now_ms) -> effects`.
"""
