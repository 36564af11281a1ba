"""Executors: run the segments of a search as a function, a command, on Ray or in PyTorch."""
