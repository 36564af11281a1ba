"""The process on a node that reads every sensor once and shares the energy among its jobs.

- `hooks`, `events`            what Slurm's prolog and epilog leave for it
- `job_facts`, `gpu_numbers`   who a job is, and which cards and cores are its own
- `node_energy`                the sensors of the node, as one energy curve each
- `cpu_time`                   what the processes of each job have computed
- `shares`, `ledger`           whose joules they are
- `job_run`, `state`           one journal for each job, and what a restart needs
- `caps`                       power caps of jobs, through the control daemon
- `agent`                      all of it, once a second
"""
