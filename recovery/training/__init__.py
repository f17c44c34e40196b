"""What a train.py touches: `run`, `Session`, the callbacks. Knows no framework; integrations register themselves in framework_hooks.py.

May import: scheduler, worker, transport, tls, checkpoint, store, config, clock, log, core, errors.
Start reading at run_loop.py (what trains is entered again for every generation), then session.py, then callbacks.py.
"""
