"""All that determines what the analytic oracle answers, as texts, found without predicting."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobKind
from wattloop.version import __version__

__all__ = ["analytic_fingerprint"]

CODE = (Path(__file__).parents[2] / "predict", Path(__file__).parent)
SUFFIXES = (".py", ".yaml", ".json", ".gz")


def analytic_fingerprint(
    kind: JobKind, cluster: Cluster, estimator: str, calibrations: Mapping[str, str]
) -> list[str] | None:
    """Version, code, kind, machines, constants and workloads; None when it cannot be told."""
    workloads = _workloads(kind)
    if workloads is None:
        return None
    machines = [
        f"{each.name} {each.gpu} {each.limit_w} {each.link_bytes_s} "
        f"{cluster.gpus_by_type[number]} {cluster.gpus_per_node(number)} "
        f"{sum(group.nodes for group in cluster.groups if group.type_name == each.name)}"
        for number, each in enumerate(cluster.types)
    ]
    constants = [_constants(each.name, each.gpu.name, calibrations) for each in cluster.types]
    network = f"{cluster.network_bytes_s}"
    return [
        *("analytic", __version__, *_code(), repr(kind), estimator),
        *(network, *machines, *constants, *workloads),
    ]


def _workloads(kind: JobKind) -> list[str] | None:
    """What the traces of the kind's batches come from."""
    from wattloop.schedule.oracle.workloads import question_of, shipped_workload

    found: list[str] = []
    for batch in kind.batches:
        path = shipped_workload(kind, batch)
        if path.is_file():
            found.append(path.name)
        elif kind.model.endswith((".json", ".json.gz")):
            found.append(_content(user_path(kind.model)))
        else:
            from wattloop.predict.request import trace_key

            try:
                parts = trace_key(question_of(kind, batch))
            except ConfigError:  # whoever predicts it says what is wrong
                return None
            if parts is None:
                return None
            found += parts
    return found


def _constants(type_name: str, gpu_name: str, calibrations: Mapping[str, str]) -> str:
    """The file of constants that the user gave or keeps for a GPU; ours are part of the code."""
    if type_name in calibrations:
        return _content(user_path(calibrations[type_name]))
    from wattloop.predict.models.kernels.lookup import user_constants_path

    return _content(user_constants_path(gpu_name))


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "none"


@lru_cache(maxsize=1)
def _code() -> tuple[str, ...]:
    """Of which day code and constants are: a clone changes without a new version."""
    files = sorted(path for folder in CODE for path in folder.rglob("*.*"))
    return tuple(
        f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}"
        for path, stat in ((path, path.stat()) for path in files if path.suffix in SUFFIXES)
    )
