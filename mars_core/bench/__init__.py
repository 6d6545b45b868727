"""Benchmarks: ratios measured pairwise in one run, never a number by itself."""
