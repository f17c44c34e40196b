"""The launcher: starts a job's processes on a host, keeps them running, and ends with the job.

May import: everything below it, no framework. Start reading at command.py; what forks workers is a package of its own (forkserver/).
Other packages import four names: `Arguments` (arguments.py), `msrun` (command.py), `stop` (background.py) and `of_viewer` (credentials.py).
"""
