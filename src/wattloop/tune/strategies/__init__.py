"""Strategies, one file each; `tune.strategy` has their contract."""
