"""The power is cut at every moment of a workload: what may be on the disk then, and is it enough?"""
