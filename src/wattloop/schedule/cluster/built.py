"""From what people write to a cluster: GPUs by name, figures with their sources."""

from dataclasses import dataclass, field
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import Fault
from wattloop.hardware.gpus import Gpu, gpu_named, variant_assumed
from wattloop.predict.cap_curve import static_power
from wattloop.schedule.cluster.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.cluster.failures import Failures, Outage
from wattloop.schedule.cluster.spec import ClusterSpec, FailuresSpec, GroupSpec
from wattloop.schedule.cluster.typical_host import typical_host

__all__ = ["built", "failures_of"]

Place = tuple[str | int, ...]


def built(
    spec: ClusterSpec, *, name: str, folder: Path | None
) -> tuple[Cluster | None, list[Fault]]:
    """The cluster, or what is wrong with its description.

    Paths of GPU files are looked for beside the cluster's own file (`folder`) first.
    """
    site = _Site(folder)
    for number, group in enumerate(spec.groups):
        site.add(group, ("groups", number))
    if site.faults:
        return None, site.faults
    cluster = Cluster(
        name=spec.name or name,
        types=tuple(site.types.values()),
        groups=tuple(site.groups.values()),
        network_w=spec.network_w,
        network_bytes_s=spec.network_bytes_s,
        sources={**site.sources, **spec.sources},
    )
    if spec.failures is None:
        return cluster, []
    failures, faults = failures_of(spec.failures, cluster, ("failures",))
    return (None if faults else cluster.with_failures(failures)), faults


def failures_of(spec: FailuresSpec, cluster: Cluster, place: Place) -> tuple[Failures, list[Fault]]:
    """Failures with nodes by number, and what is wrong with them."""
    names = {name: number for number, name in enumerate(cluster.node_names)}
    outages, faults = [], []
    for number, outage in enumerate(spec.outages):
        node = names.get(outage.node, -1) if isinstance(outage.node, str) else outage.node
        if not 0 <= node < len(names):
            said = f"no node {outage.node!r}; they are called {_some(cluster.node_names)}"
            faults.append(((*place, "outages", number, "node"), said))
        outages.append(Outage(outage.at_s, outage.at_s + outage.for_s, node))
    until_s = float("inf") if spec.until_s is None else spec.until_s
    return Failures(tuple(outages), spec.mtbf_s, spec.mttr_s or 0.0, until_s), faults


@dataclass
class _Site:
    """Types and groups while they are read."""

    folder: Path | None
    types: dict[str, GpuType] = field(default_factory=dict)
    groups: dict[str, NodeGroup] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def add(self, group: GroupSpec, place: Place) -> None:
        try:
            gpu = gpu_named(self._beside(group.gpu))
        except ConfigError as error:
            self.faults.append(((*place, "gpu"), str(error)))
            return
        kind = self._type(group, gpu, place)
        if kind is None:
            return
        name = group.name or kind.name
        if name in self.groups:
            said = f"'{name}' is the name of two groups; give this one another with 'name'"
            self.faults.append(((*place, "name" if group.name else "gpu"), said))
            return
        host_w, busy_w = self._host(group, kind, name)
        self.groups[name] = NodeGroup(
            name, kind.name, group.nodes, group.gpus_per_node, host_w, busy_w
        )

    def _beside(self, text: str) -> str:
        """A GPU file of the user may lie beside the cluster's file."""
        if text.endswith((".yaml", ".yml")) and self.folder is not None:
            beside = self.folder / text
            return str(beside) if beside.is_file() else text
        return text

    def _type(self, group: GroupSpec, gpu: Gpu, place: Place) -> GpuType | None:
        name = group.type or _type_name(group.gpu)
        idle = static_power(gpu)
        idle_w = idle.watts if group.idle_w is None else group.idle_w
        if idle_w > gpu.tdp_w:
            said = f"{idle_w:g} W is above the GPU's power limit of {gpu.tdp_w:g} W"
            self.faults.append(((*place, "idle_w"), said))
            return None
        limit_w = self._limit_w(group, gpu, (*place, "limit_w"))
        kind = GpuType(name, gpu, idle_w, limit_w, group.link_bytes_s)
        if self.types.setdefault(name, kind) != kind:
            said = (
                f"GPU type '{name}' is described differently in an earlier group; give this one a "
                "'type' of its own"
            )
            self.faults.append(((*place, "type" if group.type else "gpu"), said))
            return None
        said = f"estimated: {idle.source.removeprefix('assumed: ')}"
        source = idle.source if gpu.idle_w is not None else said
        self.sources[f"{name}.idle_w"] = "stated" if group.idle_w is not None else source
        assumed = variant_assumed(group.gpu)
        if assumed:
            self.sources[f"{name}.gpu"] = assumed
        return kind

    def _limit_w(self, group: GroupSpec, gpu: Gpu, place: Place) -> float | None:
        limit = group.limit_w
        if limit is None:
            return None
        limit_w = float(limit[:-1]) / 100 * gpu.tdp_w if isinstance(limit, str) else limit
        if not gpu.cap_min_w <= limit_w <= gpu.cap_max_w:
            said = (
                f"{limit_w:g} W cannot be set: {gpu.name} takes {gpu.cap_min_w:g} to "
                f"{gpu.cap_max_w:g} W"
            )
            self.faults.append((place, said))
        return limit_w

    def _host(self, group: GroupSpec, kind: GpuType, name: str) -> tuple[float, float]:
        if not isinstance(group.host_w, str):
            return group.host_w, group.host_busy_w_per_gpu or 0.0
        typical = typical_host(kind.gpu, group.gpus_per_node, kind.idle_w)
        self.sources[f"{name}.host_w"] = typical.source
        if group.host_busy_w_per_gpu is not None:
            return typical.host_w, group.host_busy_w_per_gpu
        self.sources[f"{name}.host_busy_w_per_gpu"] = typical.source
        return typical.host_w, typical.busy_w_per_gpu


def _type_name(text: str) -> str:
    """What a type is called when nobody says: the GPU as written, a file without its ending."""
    return Path(text).stem.lower() if text.endswith((".yaml", ".yml")) else text.lower()


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown}, ..." if len(names) > 4 else shown
