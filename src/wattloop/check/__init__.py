"""Energy as a test: what an execution used, against a limit or a baseline, noise and all.

- `figures`         the kinds of figure that can be judged, and what one execution used
- `limits`          `12 J`, `3 s`, `2e9 instructions` as people write them
- `counting`        CPU seconds and instructions, for machines without sensors
- `probe`           what a block of this process used
- `command`         what a command used, some times over
- `machine`         which kind of machine a figure belongs to
- `baselines`       the file of figures to compare with
- `verdict`         regression or not, beyond noise and tolerance
- `comparison`      figures of now held against a baseline
- `markdown`        the table for a pull request
- `pytest_plugin`   the fixture `energy`, the mark and the options; `pytest_energy` is what a test
  gets, `pytest_outcome` what is said of it, `pytest_summary` the end of the report
"""
