"""Contracts of meters, stores, strategies and policies, and what they are tested on.

- `meter_contract`  what every meter must keep
- `powercap_tree`   a powercap tree of files whose counters follow a given power
- `nvml_stub`       a `libnvidia-ml.so.1` whose power is known
- `store_contract`  what every store must keep
- `strategy_contract`, `synthetic_bench`   what every strategy must keep, and trainings to try it on
- `policy_contract`, `synthetic_cluster`   what every policy must keep, and clusters to try it on
- `slurm_lab`, `slurm_files`, `slurm_conf`   a real Slurm with several nodes and fake GPUs
- `postgres_lab`    a PostgreSQL that can be killed and started again
- `process_keeper`, `free_ports`   no process of a lab outlives it; labs do not meet on a port
- `virtual_runs`    stored runs of virtual cards that follow a script, in no time
"""
