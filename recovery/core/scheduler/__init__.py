"""The scheduler's machine: which nodes are members, when a generation begins and ends, which step the job goes back to.

Pure. May import the vocabulary beside this package, the policies and `checkpoints`; nothing of the worker's machine.
Start reading in machine.py: `handle(stimulus, now_ms) -> effects`.
"""
