"""Many nodes: what each job used on each of them, and how that gets to one place.

- `agent/`     the process on a node that measures once and shares among jobs
- `delivery/`  journals on their way to the fleet's store: kept on disk, sent once, in order
"""
