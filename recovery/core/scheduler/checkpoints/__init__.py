"""Checkpoints of the ranks as the scheduler knows them: which nodes can give one, what is committed, and what is copied to other hosts."""
