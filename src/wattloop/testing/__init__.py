"""Contracts of meters, levers, stores, strategies and policies, and what they are tested on.

Contracts:

- `meter_contract`, `lever_contract`   what every meter and every lever must keep
- `store_contract`, `experiment_contract`   what every store must keep
- `strategy_contract`, `policy_contract`    what every strategy and every policy must keep

Machines:

- `powercap_tree`, `powercap_driver`, `power_curves`   a powercap tree of files whose counters
  follow a given power
- `amdgpu_tree`, `cpufreq_tree`, `smbios`   trees and tables of others
- `nvml_stub`       a `libnvidia-ml.so.1` whose power is known
- `scripted_meter`  a meter whose readings a test decides
- `synthetic_bench`, `synthetic_cluster`    trainings and clusters that are formulas
- `journals`, `virtual_runs`   runs and their journals without a live run

Servers of a test's own (`lab`):

- `slurm_lab`, `slurm_files`, `slurm_conf`, `slurm_commands`   a real Slurm with fake GPUs
- `postgres_lab`, `fleet_server`   a PostgreSQL and a `wattloop serve` that can be killed
- `process_keeper`, `free_ports`   no process of a lab outlives it; labs do not meet on a port
"""
