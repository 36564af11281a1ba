"""Replay of a scenario on a real Slurm with virtual GPUs, compared with the simulator."""
