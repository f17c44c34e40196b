"""The launcher: starts a job's processes on a host, watches them, brings the dead back.

May import: everything below it, no framework. Start reading at arguments.py.
"""
