"""The command line: parse, one call of the queue, render. One file a command group, nothing else."""
