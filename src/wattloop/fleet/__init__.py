"""Many nodes: what each job used on each of them, and how that gets to one place.

- `agent/`     the process on a node that measures once and shares among jobs
- `job_tag/`   what a job's user says of it in its comment
- `delivery/`  journals on their way to the fleet's store: kept on disk, sent once, in order
- `nodes/`     the nodes as the server knows them
- `tokens/`    who may do what: roles, and hashes of secrets
"""
