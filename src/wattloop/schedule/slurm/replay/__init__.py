"""A scenario's jobs on a real Slurm with virtual GPUs, beside what the simulator says of them."""
