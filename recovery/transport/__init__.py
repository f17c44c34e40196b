"""Bytes on the wire: aiohttp WebSockets, msgspec frames, HTTP inspection.

May import: config, clock, log, core, errors. Knows neither store nor checkpoints; the roles join them.
Start reading at codec.py (the decoder is the first line of defence), then server.py, then client.py.
"""
