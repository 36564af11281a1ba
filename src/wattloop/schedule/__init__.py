"""A GPU cluster, jobs that come and go, and the policies that place them, judged by energy.

What a policy sees and says, in the simulator as on a real cluster:

- `view`       the queue, the machines, the people, the power, the clock
- `queue`, `rows`   who waits; `beliefs`, `objectives`, `unit_costs` what that would cost where
- `running`, `free_gpus`, `use`   who runs, what is free, who has had how much
- `actions`    what may be asked for

The rest:

- `cluster/`   nodes, GPU types, idle and host power, failures, read from YAML
- `jobs/`      kinds of jobs, tables of jobs; generated, or read from the traces of real clusters
- `oracle/`    time and power of a job on every placement it may take
- `policies/`  pure functions of a view to actions, one file each
- `engine/`    what happens when those actions are carried out, watt by watt
- `metrics/`   what a simulation achieved, in figures, and how two policies differ
- `scenarios/` cluster, jobs, oracle and rules in one file; the thesis's experiments
- `campaigns/` policies x seeds on a scenario, over processes, kept; what-if
- `described/` jobs by what their users, the operator or their history say of them
- `oracle_service/`  what many jobs would cost on many placements, in one question
- `slurm/`     a policy that runs a real Slurm
- `amounts`, `steps`, `steps_file`   watts and times as people write them; figures over the day
"""
