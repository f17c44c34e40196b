"""What a job's files say, for people and programs: state, nodes, timeline, plan of a restart, audit, a host's readiness.

Reads the files of a running or dead job and writes nothing there. May import: scheduler (its lost store), objects, transport, tls,
checkpoint, store, config, core, errors; no framework. Start reading at stored.py (all that a recovery path holds), then status.py.
The timeline is made in steps: event_index -> recorded_activity -> training_time -> node_spans, recoveries -> timeline -> timeline_page.
"""
