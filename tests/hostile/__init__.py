"""Hostile input in great numbers: `python -m tests.hostile --inputs 1000000`."""
