"""The worker's role: a daemon thread reads the clock, feeds the machine, carries out its effects.

May import: objects, transport, tls, store, checkpoint, config, clock, log, core, errors. Never the scheduler, never a framework.
Start reading in training_control.py (what the two threads of a worker say to each other), then service.py, then executor.py.
"""
