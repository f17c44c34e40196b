"""What a rank's payload of a checkpoint says about itself."""

WHOLE = 1
"""Its `format` where every tensor in it is the whole one."""
SHARDED = 2
"""Its `format` with a shard map. Releases before it read format 1 only, and would take a shard for the whole."""
SHARDS = "shards"
"""Where the shard map stands."""
