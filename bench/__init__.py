"""Benchmarks: each number beside the raw limit of the same machine, measured in the same run."""
