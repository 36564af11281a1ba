"""Policies on a real cluster: a driver that tells Slurm what to start (docs/slurm.md, ADR 0043).

Slurm, through its own programs:
    commands        starts them, with bounded time
    client          what is asked and told, one call each
    job_list        jobs as squeue lists them -> job_record
    node_record     nodes as sinfo lists them
    hostlist, gres, reservation, json_fields, admin_comment
                    its texts

What a policy is shown:
    known_nodes     nodes -> a cluster
    believed        jobs -> what is known of their time and power (schedule/described)
    site            all that stays the same as long as nodes do; `assembly` makes it
    snapshot        jobs by what there is to do with them
    live_view       the view, with `seats`, `occupied`, `live_running`
    power           what the nodes draw, with `fleet_power`

What it answers:
    plan, planning  actions applied to the view; `standby` looks ahead
    acting          the plan, in the order in which Slurm is told of it
    carrying_out    told to Slurm; `opening` says in which words, `opened` and `state` remember
                    what to undo
    gate            keeps Slurm from starting jobs unasked, and ends by itself

Round after round:
    driver, drive   do it; `pace` says how soon again
    looking, noticing
                    jobs and nodes now; what became of what was asked for
    observer        shows what it would do; `would_have` is the table
    annotating      energy of ended jobs, with `job_energy`
    event_log, status_file, round_report
                    what was done, for people and programs

    replay/         a scenario's jobs on a real Slurm, beside the simulator
"""
