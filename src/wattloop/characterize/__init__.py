"""Which setting saves what: sweeps over levers and GPU counts, and the best point per metric.

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
- `cap_prior`, `cap_belief`, `cap_choice`, `cap_probe`, `cap_finder`   the best cap with few probes:
  possible curves, what readings make of them, which cap to take, which to try next, ask and tell
- `cap_table`, `cap_evaluate`   the finder on measured curves
- `cap_levers`, `cap_visible`   the GPUs of a job and the caps they can be set to
- `cap_search`, `cap_run`       the cap of a command: one run per probe, or all within one run
- `cap_slices`, `cap_pilot`, `cap_callback`   the cap inside a training loop
- `cap_energy`, `cap_follow`    where its joules and its steps come from
- `bench`         the six kernels, framework by framework
"""
