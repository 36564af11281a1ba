"""Replay of strategies on measured tables: the cost of a search without training."""
