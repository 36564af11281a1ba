"""Time and energy of the six kernels, across frameworks and parallel styles (thesis, 3.4).

- `choice`       what a person asks for, checked
- `plan`         the workers that do it, and what is left out and why
- `processors`   which CPUs a number of threads is pinned to
- `result`       one measured kernel: rates, energies by scope, products
- `idle_power`   the machine's idle line, and idle by threads
- `bench`        doing it: workers run, the watcher measures
- `roofline`     peaks of the same session, and how near each kernel comes
- `speedups`     SIMD and threads against what they are compared with; where threads stop paying
- `session_record`  all results of one session, as JSON
- `tables`       the same as tables of the thesis
- `keeping`      results as an experiment in the store
"""
