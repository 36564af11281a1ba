"""Levers: what can be set to make a device use less. For now they are only looked at.

- `lever`          what is known of one lever
- `inventory`      all levers of this machine
- `sysfs_levers`   levers that are files: RAPL limits, cpufreq, AMD GPU power caps
- `nvidia_levers`  power limit and clocks of NVIDIA GPUs
"""
