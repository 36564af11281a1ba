"""Ground floor: units, clock, errors, records, results, provenance. Standard library only.

- `units`       names for conversions, and how quantities are printed
- `quantities`  what people write with a unit, in SI
- `plausible`   the highest power of a device, and the rise of a counter that wraps
- `clock`       where time comes from (real, virtual)
- `errors`      the exception tree
- `provenance`  where a number comes from
- `records`     domains of a node, and what a reading is, as plain data
- `results`     energies of a window, and how a run ended, as plain data
- `resolved`    the figures of whatever has a result
- `labels`      when work near a power limit is called low, medium or high
- `settings`    what a user may configure, and where each value came from
- `user_code`, `user_path`, `user_sources`   programs and paths as the user names them
- `entry_points`  what installed packages offer, read from their files
- `beside`      work in a thread of its own while a block runs
"""
