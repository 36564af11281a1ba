"""A GPU cluster, jobs that come and go, and the policies that place them, judged by energy.

- `cluster/`: nodes, GPU types, idle and host power, failures, read from YAML.
- `jobs/`: kinds of jobs, tables of jobs; generated, or read from the traces of real clusters.
- `oracle/`: time and power of a job on every placement it may take.
- `policies/`: pure functions of a view to actions, one file each.
- `engine/`: what happens when those actions are carried out, watt by watt.
- `metrics/`: what a simulation achieved, in figures, and how two policies differ.
- `scenarios/`: cluster, jobs, oracle and rules in one file; the thesis's experiments.
- `campaigns/`: policies x seeds on a scenario, over processes, kept; what-if.

`view.py`, `queue.py` and `actions.py` are what a policy sees and says, in the simulator as on a
real cluster.
"""
