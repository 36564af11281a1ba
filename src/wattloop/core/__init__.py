"""Ground floor: units, clock, errors, records and provenance. Standard library only.

- `units`       names for conversions, and how quantities are printed
- `clock`       where time comes from (real, virtual)
- `errors`      the exception tree
- `provenance`  where a number comes from
- `records`     domains, readings, energies, windows and runs as plain data
- `settings`    what a user may configure, and where each value came from
"""
