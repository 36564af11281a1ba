"""Levers for users who are not root: a daemon that sets them by rules, one lease per connection.

The client's side:

- `client`         `connect() -> Client`: read, set, release
- `remote_lever`   a lever behind the daemon, as `control.hold` takes it
- `offered`        which levers of this machine are better set through the daemon
- `job_gpus`       the list of jobs, users and GPUs that a node agent leaves for the daemon

The daemon's side:

- `server`         the daemon: listens, obeys signals, ends in good order
- `connection`     one client: bounded lines, bounded rates; `requests` answers them
- `leases`         who holds which device; `seat` one device with its hold and its default cap
- `rules`          who may set what; `rules_file`, `rules_spec`, `ranges` read it from YAML
- `change_log`     one line of JSON for each change and each refusal
- `listening`, `peer`, `trusted_file`, `watcher`  below them

`protocol` is what both sides know.
"""
