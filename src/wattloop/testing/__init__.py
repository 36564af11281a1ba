"""Contracts that meters and stores must keep, and the pieces that make a machine to test on.

- `meter_contract`  what every meter must keep
- `powercap_tree`   a powercap tree of files whose counters follow a given power
- `nvml_stub`       a `libnvidia-ml.so.1` whose power is known
- `store_contract`  what every store must keep
- `virtual_runs`    stored runs of virtual cards that follow a script, in no time
"""
