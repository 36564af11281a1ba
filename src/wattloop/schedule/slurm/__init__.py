"""Slurm driver: run Wattloop's scheduling policies on a real cluster (docs/slurm.md, ADR 0043)."""
