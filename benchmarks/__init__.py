"""Benchmarks: one question a file, answers as ratios within one run."""
