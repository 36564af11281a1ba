"""Executors: they run the segments of a search as a function, a command, on Ray or in torch."""
