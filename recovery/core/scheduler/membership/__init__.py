"""Which nodes are members: processes that register, are here, are lost, and take over the rank of a lost one."""
