"""The pure core: values, policies, machines and views.

For: every decision of the engine, as functions and state machines without I/O.
May import: recovery.errors, msgspec and value modules of the standard library (enum, typing, hashlib, bisect).
Never here: a clock, a socket, a file, a thread, randomness, the environment, logging. Time comes in as integer `now_ms`.
Start reading in scheduler/machine.py, then worker/machine.py, then policy/.
"""
