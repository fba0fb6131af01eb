"""Whole-system tests: real processes, real sockets, real kills."""
