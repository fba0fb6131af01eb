"""Stores of a queue."""
