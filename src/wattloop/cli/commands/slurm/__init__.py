"""`wattloop slurm`: policies on a real cluster."""
