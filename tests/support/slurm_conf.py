"""The configuration of a lab's Slurm: no systemd, no cgroups, several nodes on one host."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class NodeLine(NamedTuple):
    """One node in `slurm.conf`."""

    name: str
    port: int
    cpus: int
    gpu_type: str
    gpus: int
    weight: int = 1


def slurm_conf(
    folder: Path, port: int, nodes: Sequence[NodeLine], hooks: Mapping[str, str], extra: str
) -> str:
    """Return the text of `slurm.conf`; a line of `extra` replaces the default one of the same
    name.
    """
    host = socket.gethostname().partition(".")[0]
    settings = {
        "ClusterName": f"lab{port}",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge.socket",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{folder}/finished.txt",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "PriorityType": "priority/basic",
        "SchedulerType": "sched/backfill",
        # By default, a batch job may wait 3 s for the next pass over the queue.
        "SchedulerParameters": "batch_sched_delay=0,bf_interval=2",
        "GresTypes": "gpu",
        "MpiDefault": "none",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "KillWait": "1",
        "MessageTimeout": "30",
        "MaxJobCount": "20000",
        "SwitchType": "switch/none",
        **hooks,
    }
    lines = [f"{_node(node, host)}\n" for node in nodes]
    lines.append(f"PartitionName=all Nodes={','.join(n.name for n in nodes)} Default=YES\n")
    for line in map(str.strip, extra.splitlines()):
        name, equals, value = line.partition("=")
        if not line or line.startswith("#"):
            continue
        if equals and name not in ("NodeName", "PartitionName"):
            settings[name] = value
        elif line.startswith("PartitionName=all"):
            lines[-1] = f"{line}\n"
        else:
            lines.append(f"{line}\n")
    return "".join([*(f"{name}={value}\n" for name, value in settings.items()), *lines])


def gres_conf(folder: Path, nodes: Sequence[NodeLine]) -> str:
    """Return the text of `gres.conf`: the nodes share the device files, which are on one host."""
    return "".join(
        f"NodeName={node.name} Name=gpu Type={node.gpu_type} "
        f"File={folder}/dev/nvidia[0-{node.gpus - 1}]\n"
        for node in nodes
        if node.gpus
    )


def write_script(path: Path, text: str) -> Path:
    """Write an executable file."""
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path


def shell_exports(values: Mapping[str, str]) -> str:
    """Return lines that a shell reads, and Slurm's TaskProlog understands too."""
    return "".join(f"export {name}={value}\n" for name, value in values.items())


def _node(node: NodeLine, host: str) -> str:
    gres = f" Gres=gpu:{node.gpu_type}:{node.gpus}" if node.gpus else ""
    return (
        f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={node.port}{gres} "
        f"CPUs={node.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={node.cpus} "
        f"ThreadsPerCore=1 RealMemory=8000 Weight={node.weight} State=UNKNOWN"
    )
