"""The launcher: starts a job's processes on a host, keeps them running, and ends with the job.

May import: everything below it, no framework. Start reading at job_spec.py, what a command line becomes, and command.py, what starts it;
what forks workers is a package of its own (forkserver/), as is what only `recovery msrun` needs (msrun/).
Other packages import eight names: `JobSpec` (job_spec.py) and the readers of flags (flag_values.py), `FLAGS`, `job_spec` and `check_host` (msrun/),
`launch` (command.py), `stop` (background.py) and `of_viewer` (credentials.py).
"""
