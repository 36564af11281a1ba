"""Statistics over tables of runs.

- `metrics`      energy, time and what weighs them against each other: EDP, ED2P, EDS(k), gains
- `intervals`    means of few repeats, outliers
- `table`        the one input: rows of parameters and results; `reading` makes it from CSV and rows
- `epoch_rows`   logs with a row per epoch as a row per run
- `columns`, `roles`  what a name says: unit, parameter or result, which way is better
- `findings`     the one output: a table with facts, notes and warnings
- `quotient`, `top`, `row_metrics`  quality per energy, best runs, metrics of every row
- `ols`, `design`, `fit_quality`  regression over levels, every level with its row
- `clusters`, `features`, `grouping`, `influence`  families of runs, and which parameters matter
- `correlation`, `importance`, `pareto`, `matrix`
- `libraries`    what is installed, and the command for what is not
"""
