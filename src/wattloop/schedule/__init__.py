"""Energy-aware scheduling of GPU clusters: policies, a simulator and a Slurm driver."""
