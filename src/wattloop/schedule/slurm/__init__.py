"""Policies on a real cluster: a driver that tells Slurm what to start (docs/slurm.md, ADR 0043)."""
