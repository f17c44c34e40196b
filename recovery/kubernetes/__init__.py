"""A job as Kubernetes objects: arguments in, YAML out. Pure; nothing here speaks to a cluster.

May import: config (the rules of the variables that pods get), launch's readers of flags, errors. Start reading at render.py, which the command
calls; render_flags.py reads what was typed into a `KubernetesJob` (job.py), checks.py refuses what cannot work, exit_codes.py says what a pod's end
means; pods.py and volumes.py are the same for all kinds; jobset.py, indexed_jobs.py and train_job.py are one kind each.
"""
