"""Which setting saves what: sweeps over levers and GPU counts, and the best point per metric.

- `lined_yaml`    YAML with the line of every field, for messages
- `sweep_spec`    what a sweep is asked to do
- `sweep_axes`    levels of each lever on this machine, the default among them
- `sweep_plan`    every point, in which order, and with which command and environment
- `repeats`       when a point has been repeated often enough
- `cooling`       waiting until the machine is as cool as it was
- `sweep`         doing it, resumable at any moment
- `gains`         what a setting gains over the default, with its interval
- `point_result`  one point with its repeats, and those it is compared with
- `sweep_result`  means, intervals and metrics per point, best point per metric
- `sweep_tables`  the same as tables of the literature
"""
