"""Strategies on measured tables: what a search would have cost, in seconds."""
