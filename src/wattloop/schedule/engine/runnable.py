"""Which kinds of jobs can never run here, and why."""

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.machines import Machines
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.oracle.options import Options

__all__ = ["why_never"]


def why_never(kind: JobKind, options: Options, cluster: Cluster) -> str:
    """Why no job of this kind can run, even on the empty cluster; empty when it can."""
    by_type = zip(cluster.types, cluster.gpus_by_type, strict=True)
    most = max((n for each, n in by_type if not kind.types or each.name in kind.types), default=0)
    least = min(kind.gpus)
    if least <= most and not len(options):
        return f"{kind.label}: fits no GPU of the cluster in any of its settings"
    free = Machines(cluster).free
    if any(free.fits(shape) for shape in set(options.shapes())):
        return ""
    least = int(options.gpus.min()) if len(options) else least
    return f"{kind.label}: needs at least {least} GPUs of one type, the cluster has {most} at most"
