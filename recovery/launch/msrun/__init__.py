"""`recovery msrun`: MindSpore's flags, processor bindings and rank tables, read into the launcher's own words (`job_spec.JobSpec`).

May import: job_spec.py and the readers of flags; nothing that starts a process. Start reading at flags.py.
"""
