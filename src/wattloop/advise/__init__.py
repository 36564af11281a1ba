"""What a run wasted and what to do about it, each advice with its evidence and its source.

- `advice`     one advice
- `advisor`    all rules over one run, the best advice first
- `facts`, `gpu_facts`   what rules may look at, read from a stored run once
- `trace`      a value over time
- `precision`, `tried`, `idle_node`, `serving`   evidence beside the curves: recorded precision,
  sweeps of the same command, the machine after the run, programs that wait on purpose
- `again`      the command that confirms an advice
- `rules/`     one rule per file

Importing this package loads nothing.
"""
