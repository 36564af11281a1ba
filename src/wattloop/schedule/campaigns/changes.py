"""What an operator may think of buying: other GPUs, more nodes, another power budget."""

import re
from dataclasses import dataclass, replace

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import nearest
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.cap_curve import static_power
from wattloop.schedule.amounts import watts
from wattloop.schedule.cluster.cluster import Cluster, GpuType
from wattloop.schedule.steps import Steps

__all__ = ["Changes", "with_budget", "with_nodes", "with_replaced"]

AMOUNT = re.compile(r"\s*([-+]?)\s*([0-9.]+(?:e[-+]?\d+)?)\s*([a-z%]*)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Changes:
    """Of a scenario, as people write them; empty is none.

    Attributes:
        replacements: `a100=h100` each: type of the cluster, and any GPU in its place.
        budget: `+20kW`, `-10%`, `4500W`.
        nodes: `+4`, `GROUP=+4`, `GROUP=8` each.
    """

    replacements: tuple[str, ...] = ()
    budget: str = ""
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.replacements or self.budget or self.nodes)

    @property
    def label(self) -> str:
        """In words, for a sentence: `With h100 in place of a100 and 4 more nodes`."""
        words = [f"{new} in place of {old}" for old, new in self.names().items()]
        words += [_nodes_said(each) for each in self.nodes]
        if self.budget:
            how = "changed by" if self.budget.strip().startswith(("+", "-")) else "of"
            words.append(f"a power budget {how} {self.budget.strip()}")
        return "With " + " and ".join(words)

    def names(self) -> dict[str, str]:
        """GPU type -> what takes its place."""
        found = {}
        for each in self.replacements:
            old, equals, new = (part.strip() for part in each.partition("="))
            if not (old and equals and new):
                raise ConfigError(f"--replace {each}: write OLD=NEW, such as a100=h100")
            found[old] = new
        return found

    def cluster(self, cluster: Cluster) -> Cluster:
        """The cluster as it would be."""
        for old, new in self.names().items():
            cluster = with_replaced(cluster, old, new)
        for each in self.nodes:
            cluster = with_nodes(cluster, each)
        return cluster


def with_replaced(cluster: Cluster, old: str, new: str) -> Cluster:
    """The cluster with every GPU of a type exchanged for another, one for one.

    Hosts and network stay. A type that the cluster has already is that very type; one that it has
    not draws when idle what its data sheet or the usual share says.

    Raises:
        ConfigError: no such type here, or no such GPU.
    """
    types = {each.name: each for each in cluster.types}
    if old not in types:
        raise ConfigError(f"--replace {old}={new}: no GPU type '{old}'; {nearest(old, [*types])}")
    if new not in types:
        try:
            gpu = gpu_named(new)
        except ConfigError as error:
            raise ConfigError(f"--replace {old}={new}: {error}") from None
        types[new] = GpuType(new, gpu, static_power(gpu).watts)
    groups = tuple(
        replace(group, type_name=new) if group.type_name == old else group
        for group in cluster.groups
    )
    used = tuple(kind for kind in types.values() if kind.name in {g.type_name for g in groups})
    return replace(cluster, types=used, groups=groups)


def with_nodes(cluster: Cluster, text: str) -> Cluster:
    """The cluster with more or fewer nodes: `GROUP=+4`, `GROUP=8`, or `+4` in all.

    Nodes that are not said to be of a group are dealt to all groups by their size.

    Raises:
        ConfigError: no such group, not a number, or a group of no nodes.
    """
    name, equals, amount = (part.strip() for part in text.rpartition("="))
    match = re.fullmatch(r"([-+]?)(\d+)", amount)
    if match is None or (not equals and not match[1]):
        raise ConfigError(f"--nodes {text}: write +4, -1, GROUP=+4 or GROUP=8")
    counts = {group.name: group.nodes for group in cluster.groups}
    number = int(match[2])
    signed = -number if match[1] == "-" else number
    if not equals:
        sign = -1 if match[1] == "-" else 1
        more = dict(zip(counts, _dealt(number, list(counts.values())), strict=True))
        counts = {group: had + sign * more[group] for group, had in counts.items()}
    elif name not in counts:
        raise ConfigError(f"--nodes {text}: no group '{name}'; {nearest(name, [*counts])}")
    else:
        counts[name] = counts[name] + signed if match[1] else number
    for group, nodes in counts.items():
        if nodes < 1:
            raise ConfigError(f"--nodes {text}: group '{group}' would have {nodes} nodes")
    return _renumbered(cluster, counts)


def with_budget(budget_w: Steps | None, text: str) -> Steps:
    """Another budget: `+20kW` or `-10%` of the one there is, at all times; `4500W` in its place.

    Raises:
        ConfigError: not a power, or relative to a budget that is not there.
    """
    match = AMOUNT.fullmatch(text)
    if match is None:
        raise ConfigError(f"--budget {text}: write +20kW, -10% or 4500W")
    sign, number, unit = match.groups()
    if sign and (budget_w is None or not any(map(_is_finite, budget_w.values))):
        raise ConfigError(
            f"--budget {text}: the scenario has no power budget to change; give one such as 4500W"
        )
    if unit == "%":
        if not sign or budget_w is None:
            raise ConfigError(f"--budget {text}: of what? Write +10% or -10%")
        factor = 1 + float(f"{sign}{number}") / 100
        return replace(budget_w, values=tuple(value * factor for value in budget_w.values))
    try:
        amount_w = float(watts(f"{number} {unit}"))
    except ValueError as error:
        raise ConfigError(f"--budget {text}: {error}") from None
    if not sign or budget_w is None:
        return Steps.constant(amount_w)
    more_w = -amount_w if sign == "-" else amount_w
    return replace(budget_w, values=tuple(value + more_w for value in budget_w.values))


def _nodes_said(text: str) -> str:
    group, _, amount = (part.strip() for part in text.rpartition("="))
    number = amount.lstrip("+-")
    more = {"+": " more", "-": " fewer"}.get(amount[:1], "")
    of = f" of {group}" if group else ""
    return f"{number}{more} node{'s' * (number != '1')}{of}"


def _is_finite(value: float) -> bool:
    return value < float("inf")


def _dealt(number: int, sizes: list[int]) -> list[int]:
    """`number` nodes over groups in proportion to their sizes, by largest remainders."""
    exact = [number * size / sum(sizes) for size in sizes]
    found = [int(each) for each in exact]
    by_rest = sorted(range(len(sizes)), key=lambda at: found[at] - exact[at])
    for at in by_rest[: number - sum(found)]:
        found[at] += 1
    return found


def _renumbered(cluster: Cluster, counts: dict[str, int]) -> Cluster:
    """With so many nodes in each group; outages stay with their nodes."""
    groups = tuple(replace(group, nodes=counts[group.name]) for group in cluster.groups)
    changed = replace(cluster, groups=groups)
    failures = cluster.failures
    if failures is None or not failures.outages:
        return changed
    numbers = {name: number for number, name in enumerate(changed.node_names)}
    kept = tuple(
        outage._replace(node=numbers[cluster.node_names[outage.node]])
        for outage in failures.outages
        if cluster.node_names[outage.node] in numbers
    )
    return replace(changed, failures=replace(failures, outages=kept))
