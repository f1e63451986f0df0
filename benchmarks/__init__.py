"""Benchmarks: what redelivery costs and what it gives, as ratios against the peer in the same run."""
