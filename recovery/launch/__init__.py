"""The launcher: starts a job's processes on a host, keeps them running, and ends with the job.

May import: everything below it, no framework. Start reading at command.py; what forks workers is a package of its own (forkserver/).
"""
