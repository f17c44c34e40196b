"""Slurm places the hosts of a job: what it says of them, the batch script, and one step for each host."""
