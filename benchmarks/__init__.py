"""Benchmarks: costs and benefits of redelivery, as ratios to a peer in the same run."""
