"""Strategies on measured tables: what a search would have cost, in seconds.

- `tables`       reads tables of the Zeus form and joins them to workloads
- `workload`     what was measured of one workload on one GPU; its default and its oracle
- `bench`        runs segments by the tables; `cap_scripts` finds caps inside them
- `policy`       a job that is run again and again: search once, or remember; `zeus` as published
- `policies`     all of them by name
- `replay`       the figures by which they are compared
"""
