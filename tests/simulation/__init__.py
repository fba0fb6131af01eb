"""Deterministic simulation: the shipped code on a virtual clock, under faults that a seed decides.

`python -m tests.simulation --seed N` replays one run, byte for byte; `make simulate SEEDS=1000` runs many.
What is real: dispatcher, queue, store, SQLite, gate, HTTP client, receiver, its HTTP server. What is simulated:
time, the order of what the kernel reports, threads, the network, the death of processes, the disk's errors.
"""
