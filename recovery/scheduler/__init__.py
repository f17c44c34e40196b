"""The scheduler's role: read the clock, feed the scheduler's machine, carry out its effects.

May import: transport, tls, store, checkpoint, config, clock, log, core, errors. Never the worker, never a framework.
Start reading at service.py (the loop), then startup.py (lock, load, raise incarnation), then executor.py.
"""
