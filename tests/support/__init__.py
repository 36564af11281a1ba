"""Machines, servers and clusters for tests and benchmarks, outside the package.

Files of a Linux host (`powercap_tree`, `cpufreq_tree`, `amdgpu_tree`, `smbios`), a compiled
`libnvidia-ml` (`nvml_stub`), known power curves (`power_curves`, `powercap_driver`), servers of a
test's own (`slurm_lab`, `postgres_lab`, `fleet_server`) and runs of virtual cards (`virtual_runs`).
Benchmarks import the folder as `support`.
"""
