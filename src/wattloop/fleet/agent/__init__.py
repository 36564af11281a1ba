"""The process on a node that reads every sensor once and shares the energy among its jobs.

- `hooks`, `events`, `arrivals`   what Slurm's prolog and epilog leave for it
- `job_facts`, `gpu_numbers`      who a job is, and which cards and CPUs are its own
- `node_energy`, `plausible`      the sensors of the node, as one energy curve each
- `cpu_time`, `process_times`     what the processes of each job have computed
- `shares`, `ledger`, `sharing`   whose joules they are; `idle_power` of what nobody does
- `job_run`, `run_book`           one journal per job: `share_domains`, `run_header`, `earlier_rows`
- `state`, `resume`               what a restart needs, and what it does with it
- `lost_ends`                     jobs whose epilog never ran
- `desk`, `caps`                  Slurm's controller and the control daemon, in a thread
- `agent`, `service`              all of it, once a second; `site`, `config`: where
"""
