"""Levers: what can be set to make a device use less, and that it is put back to what it was.

- `lever`          the contract of a lever
- `registry`       all levers of this machine as a `lever_inventory`; `names` finds one by its name
- `daemon`         levers for users who are not root
- `values`         `70%`, `1.4 GHz`, `default` as a device takes them
- `hold`           set levers for the time of a block: lock, journal, read back, restore;
  `holding` does it
- `restore`        put back what a killed process left
- `looking`, `writing`, `putting_back`  its steps; `grip` what it has in its hands meanwhile:
  `lock`, `journal`, `guardian`, `ending`; `recorded`, `place`, `owner`, `descriptors` below them
- `nvidia_levers`, `amd_levers`, `rapl_levers`, `cpufreq_levers`  the levers; `file_lever`,
  `nvidia_card`, `cpufreq_policies` below them
"""
