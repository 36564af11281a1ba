"""Cluster files: their schema, reading them, and the shipped clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import (
    Fault,
    YamlWithLines,
    format_errors,
    nearest,
    read_yaml,
)
from wattloop.hardware.gpus import Gpu, gpu_named, variant_assumed
from wattloop.predict.cap_curve import static_power
from wattloop.predict.node import DISPATCH_CORES, NodeParts, node_prediction, typical_node
from wattloop.predict.prediction import Prediction
from wattloop.schedule.cluster.cluster import (
    Cluster,
    Failures,
    GpuType,
    NodeGroup,
    Outage,
    SleepState,
)
from wattloop.schedule.yaml_model import (
    BytesPerSecond,
    Count,
    PositiveSeconds,
    Seconds,
    StrictModel,
    Watts,
    not_negative,
    watts,
)

NETWORK_BYTES_S = 25e9
"""Default network: 200 Gbit/s, one InfiniBand HDR port."""


def _host(value: Any) -> Any:
    if value is None:
        raise ValueError(
            "power of a node in addition to its GPUs: give watts, 'typical' for an estimate, or "
            "0 to count GPUs only"
        )
    if value == "typical":
        return value
    return not_negative(watts(value), "watts, 0 or more, or 'typical'")


def _limit(value: Any) -> Any:
    """Validate a power limit; `75%` stays a text, because the GPU's limit is not known here."""
    if isinstance(value, str) and value.strip().endswith("%"):
        share = watts(value.strip().removesuffix("%"))
        if not 0 < share <= 100:
            raise ValueError(f"{value!r} is not between 0% and 100%")
        return f"{share:g}%"
    return None if value is None else not_negative(watts(value), "watts, or a share such as 75%")


def _node(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"write the name or number of a node, not {value!r}")
    return value


class OutageSpec(StrictModel):
    """Outage of a node."""

    node: Annotated[int | str, BeforeValidator(_node)]
    at_s: Annotated[Seconds, Field(alias="at")]
    for_s: Annotated[PositiveSeconds, Field(alias="for")]


class FailuresSpec(StrictModel):
    """Known outages, and the rate of further failures."""

    outages: list[OutageSpec] = Field(default_factory=list)
    mtbf_s: Annotated[PositiveSeconds | None, Field(alias="mtbf")] = None
    mttr_s: Annotated[PositiveSeconds | None, Field(alias="mttr")] = None
    until_s: Annotated[PositiveSeconds | None, Field(alias="until")] = None

    @model_validator(mode="after")
    def _both_or_none(self) -> "FailuresSpec":
        if (self.mtbf_s is None) != (self.mttr_s is None):
            raise ValueError("mtbf (mean time between failures) and mttr (to repair) go together")
        return self


class SleepSpec(StrictModel):
    """Power-down state of idle GPUs, or of nodes without a job."""

    name: Annotated[str, Field(min_length=1)] = "sleep"
    power_w: Watts
    enter_s: Annotated[Seconds, Field(alias="enter")]
    exit_s: Annotated[Seconds, Field(alias="exit")]
    enter_j: Annotated[float | None, Field(ge=0)] = None
    exit_j: Annotated[float | None, Field(ge=0)] = None
    after_s: Annotated[Seconds | None, Field(alias="after")] = None

    @model_validator(mode="after")
    def _energy_takes_time(self) -> "SleepSpec":
        for name, joules, lasts_s in (
            ("enter", self.enter_j, self.enter_s),
            ("exit", self.exit_j, self.exit_s),
        ):
            if joules and not lasts_s:
                raise ValueError(f"{name}_j is {joules:g} J in no time; give {name} a duration")
        return self


class GroupSpec(StrictModel):
    """Group of identical nodes."""

    name: str | None = None
    gpu: Annotated[str, Field(min_length=1)]
    type: Annotated[str | None, Field(min_length=1)] = None
    nodes: Annotated[Count, Field(le=1_000_000)]
    gpus_per_node: Annotated[Count, Field(le=1_024)]
    host_w: Annotated[float | str, BeforeValidator(_host)]
    host_busy_w_per_gpu: Watts | None = None
    idle_w: Watts | None = None
    limit_w: Annotated[float | str | None, BeforeValidator(_limit)] = None
    link_bytes_s: BytesPerSecond | None = None
    exchange_w: Annotated[float | str | None, BeforeValidator(_limit)] = None
    exchange_hop_s: Annotated[Seconds, Field(le=10, alias="exchange_hop")] = 0.0
    gpu_sleep: list[SleepSpec] = Field(default_factory=list)
    node_sleep: list[SleepSpec] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _host_said(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.keys() <= cls.model_fields.keys():
            value.setdefault("host_w", None)  # so that its own message is given
        return value


class ClusterSpec(StrictModel):
    """Groups of nodes, their network and their failures."""

    name: str = ""
    description: str = ""
    groups: Annotated[list[GroupSpec], Field(min_length=1)]
    network_w: Watts = 0.0
    network_bytes_s: BytesPerSecond = NETWORK_BYTES_S
    hop_s: PositiveSeconds | None = None
    failures: FailuresSpec | None = None
    sources: dict[str, str] = Field(default_factory=dict)


class HostPower(NamedTuple):
    """Power of a node without its GPUs, at the socket."""

    host_w: float
    busy_w_per_gpu: float
    source: str


def typical_host(gpu: Gpu, gpus: int, idle_w: float) -> HostPower:
    """Estimate the host power of a server of the GPU's generation, by `predict`'s node model.

    The result has the power with all GPUs idle, and the additional power for each GPU at its power
    limit, including fans and losses of the power supply.
    """
    parts = replace(typical_node(gpu), gpus=gpus)
    # Idle: no CPU core dispatches kernels or loads data.
    at_rest = replace(parts, loader_cores=-DISPATCH_CORES)
    rest_w = _host_w(at_rest, idle_w)
    busy_w = _host_w(parts, gpu.tdp_w)
    return HostPower(
        round(rest_w),
        round((busy_w - rest_w) / gpus),
        f"estimated: {parts.source.removeprefix('assumed: ')}, by predict's model of a node",
    )


def _host_w(parts: NodeParts, gpu_w: float) -> float:
    step = Prediction(step_s=1.0, power_w=gpu_w, gpus=parts.gpus)
    return node_prediction(step, parts).power_w - parts.gpus * gpu_w


Place = tuple[str | int, ...]


def build_cluster(
    spec: ClusterSpec, *, name: str, folder: Path | None
) -> tuple[Cluster | None, list[Fault]]:
    """Build the cluster, or return the faults of its description.

    Relative paths of GPU files are searched first in the folder of the cluster file (`folder`).
    """
    site = _Site(folder)
    for place, group in enumerate(spec.groups):
        site.add(group, ("groups", place))
    if site.faults:
        return None, site.faults
    cluster = Cluster(
        name=spec.name or name,
        types=tuple(site.types.values()),
        groups=tuple(site.groups.values()),
        network_w=spec.network_w,
        network_bytes_s=spec.network_bytes_s,
        hop_s=spec.hop_s,
        sources={**site.sources, **spec.sources},
    )
    if spec.failures is None:
        return cluster, []
    failures, faults = build_failures(spec.failures, cluster, ("failures",))
    return (None if faults else replace(cluster, failures=failures)), faults


def build_failures(
    spec: FailuresSpec, cluster: Cluster, place: Place
) -> tuple[Failures, list[Fault]]:
    """Build the failures with node numbers, or return their faults."""
    names = {name: number for number, name in enumerate(cluster.node_names)}
    outages, faults = [], []
    for index, outage in enumerate(spec.outages):
        node = names.get(outage.node, -1) if isinstance(outage.node, str) else outage.node
        if not 0 <= node < len(names):
            shown = ", ".join([*cluster.node_names[:4], *(["..."] if len(names) > 4 else [])])
            said = f"no node {outage.node!r}; they are called {shown}"
            faults.append(((*place, "outages", index, "node"), said))
        outages.append(Outage(outage.at_s, outage.at_s + outage.for_s, node))
    until_s = float("inf") if spec.until_s is None else spec.until_s
    return Failures(tuple(outages), spec.mtbf_s, spec.mttr_s or 0.0, until_s), faults


@dataclass
class _Site:
    folder: Path | None
    types: dict[str, GpuType] = field(default_factory=dict)
    groups: dict[str, NodeGroup] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def add(self, group: GroupSpec, place: Place) -> None:
        try:
            local = None if self.folder is None else self.folder / group.gpu
            is_local = group.gpu.endswith(SUFFIXES) and local is not None and local.is_file()
            gpu = gpu_named(str(local) if is_local else group.gpu)
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
        awake_w = host_w + group.gpus_per_node * kind.idle_w
        sleeps = self._sleeps(group.node_sleep, awake_w, (*place, "node_sleep"))
        self.groups[name] = NodeGroup(
            name, kind.name, group.nodes, group.gpus_per_node, host_w, busy_w, sleeps
        )

    def _type(self, group: GroupSpec, gpu: Gpu, place: Place) -> GpuType | None:
        default = Path(group.gpu).stem if group.gpu.endswith(SUFFIXES) else group.gpu
        name = group.type or default.lower()
        idle = static_power(gpu)
        idle_w = idle.watts if group.idle_w is None else group.idle_w
        if idle_w > gpu.tdp_w:
            said = f"{idle_w:g} W is above the GPU's power limit of {gpu.tdp_w:g} W"
            self.faults.append(((*place, "idle_w"), said))
            return None
        limit_w = self._limit_w(group, gpu, (*place, "limit_w"))
        exchange_w = group.exchange_w
        if isinstance(exchange_w, str):
            exchange_w = float(exchange_w[:-1]) / 100 * gpu.tdp_w
        if exchange_w is not None and not idle_w <= exchange_w <= gpu.tdp_w:
            said = (
                f"{exchange_w:g} W is not between the {idle_w:g} W at rest and the limit of "
                f"{gpu.tdp_w:g} W"
            )
            self.faults.append(((*place, "exchange_w"), said))
            return None
        kind = GpuType(
            *(name, gpu, idle_w, limit_w, group.link_bytes_s, exchange_w),
            exchange_hop_s=group.exchange_hop_s,
            sleeps=self._sleeps(group.gpu_sleep, idle_w, (*place, "gpu_sleep")),
        )
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

    def _sleeps(
        self, states: Sequence[SleepSpec], idle_w: float, place: Place
    ) -> tuple[SleepState, ...]:
        """Return the states by depth: a deeper one draws less, and is entered later."""
        found: list[SleepState] = []
        for number, state in enumerate(states):
            above_w = found[-1].power_w if found else idle_w
            if state.power_w >= above_w:
                said = f"{state.power_w:g} W is not below the {above_w:g} W of the state before"
                self.faults.append(((*place, number, "power_w"), said))
                return ()
            ladder = SleepState.of(
                idle_w,
                state.power_w,
                state.enter_s,
                state.exit_s,
                **state.model_dump(include={"name", "enter_j", "exit_j", "after_s"}),
            )
            if found and ladder.after_s < found[-1].after_s + found[-1].enter_s:
                said = f"is entered after {ladder.after_s:g} s, before the state above it is"
                self.faults.append(((*place, number, "after_s"), f"{said}; give a longer 'after'"))
                return ()
            found.append(ladder)
        return tuple(found)

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


SHIPPED = Path(__file__).with_name("shipped")
SUFFIXES = (".yaml", ".yml")


def load_cluster(name: str) -> Cluster:
    """Load the cluster of a YAML file, or a shipped one by name (docs/clusters.md).

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    path = name
    if not name.endswith(SUFFIXES) and not Path(name).is_file():
        known = shipped_clusters()
        if name not in known:
            raise ConfigError(
                f"no cluster called {name!r}: {nearest(name, list(known))}; or give the path of a "
                "YAML file (docs/clusters.md)"
            )
        path = str(SHIPPED / f"{name}.yaml")
    source = read_yaml(path)
    if not source.data:
        raise ConfigError(f"{name}: is empty; a cluster has at least 'groups' (docs/clusters.md)")
    return cluster_from(source.data, source, name=Path(path).stem)


def shipped_clusters() -> dict[str, str]:
    """Return the names and descriptions of the shipped clusters."""
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    return {name: read_yaml(str(SHIPPED / f"{name}.yaml")).data["description"] for name in names}


def cluster_from(
    data: Mapping[str, Any], source: YamlWithLines | None = None, *, name: str = "cluster"
) -> Cluster:
    """Build a cluster from plain data; `source` gives the line numbers of its fields.

    Raises:
        ConfigError: one line per fault.
    """
    spec = ClusterSpec.read(data, source, name)
    folder = None if source is None else Path(source.path).parent
    cluster, faults = build_cluster(spec, name=name, folder=folder)
    if cluster is None:
        raise ConfigError(format_errors(faults, source, otherwise=name))
    return cluster
