"""The material of the secure channel: config.json, PKCS#12 bundles, authorities, revocation lists, and the TLS contexts made of them.

Keys are in memory only. What is wrong with a file is found before a connection is made, and named.

May import: config, clock, errors, core.ids. Knows no socket. Start reading at config_file.py, then material.py, then contexts.py.
"""
