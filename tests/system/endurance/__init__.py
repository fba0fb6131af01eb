"""Hours of mixed traffic while processes are killed: `python -m tests.system.endurance --minutes 60`."""
