"""Sweeps: vary levers and GPU counts, and find the best point per metric."""
