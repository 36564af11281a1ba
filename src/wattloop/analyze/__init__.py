"""Statistics over tables of runs.

- `metrics`  energy, time and what weighs them against each other: EDP, ED2P, EDS(k), gains
"""
