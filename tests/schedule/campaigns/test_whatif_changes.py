"""Promises of what-if changes: other GPUs, more nodes, another budget."""

import math
from dataclasses import replace

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.whatif import Changes, with_budget, with_nodes, with_replaced
from wattloop.schedule.cluster import Cluster
from wattloop.schedule.cluster.cluster import Failures, Outage
from wattloop.schedule.cluster.file import cluster_from, load_cluster
from wattloop.schedule.step_function import StepFunction

DAY = StepFunction((0.0, 3_600.0), (4_000.0, 6_000.0), 7_200.0)


def counts(cluster: Cluster) -> dict[str, int]:
    """Return the number of nodes of each group."""
    return {group.name: group.nodes for group in cluster.groups}


def groups_of(**nodes: int) -> Cluster:
    """Return one group of A100 nodes for each name."""
    rows = [
        {"name": name, "type": "a100", "gpu": "a100", "nodes": n, "gpus_per_node": 8, "host_w": 300}
        for name, n in nodes.items()
    ]
    return cluster_from({"groups": rows})


def test_replaced_gpus_are_those_the_cluster_has_already() -> None:
    """H100s in place of A100s equal the other H100s; the group and its hosts stay."""
    thesis = load_cluster("thesis")
    changed = with_replaced(thesis, "a100", "h100")
    assert [kind.name for kind in changed.types] == ["h100"]
    assert changed.types[0] == thesis.types[1]
    assert counts(changed) == counts(thesis)
    assert changed.gpus_by_type == (16,)


def test_a_gpu_that_is_new_to_the_cluster_comes_from_the_table_of_gpus() -> None:
    """Its idle power is the default, since the user gave none."""
    changed = with_replaced(load_cluster("thesis"), "a100", "h200")
    new = next(kind for kind in changed.types if kind.name == "h200")
    assert new.gpu.name == "h200"
    assert 0 < new.idle_w < new.tdp_w / 2


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a=+4", {"a": 7, "b": 1}),
        ("b=3", {"a": 3, "b": 3}),
        ("a=-1", {"a": 2, "b": 1}),
        ("+4", {"a": 6, "b": 2}),
        ("+1", {"a": 4, "b": 1}),
        ("+2", {"a": 5, "b": 1}),
    ],
)
def test_nodes_are_added_to_their_group_or_dealt_by_size(text: str, nodes: dict[str, int]) -> None:
    """Of four more, three go to the group of three."""
    assert counts(with_nodes(groups_of(a=3, b=1), text)) == nodes


def test_an_outage_stays_with_its_node_when_numbers_move() -> None:
    """Node b-0 is number 3 before and number 5 after two more of group a; an outage of a removed
    node goes.
    """
    outages = (Outage(0.0, 10.0, 3), Outage(5.0, 9.0, 2))
    cluster = replace(groups_of(a=3, b=1), failures=Failures(outages))
    more, fewer = with_nodes(cluster, "a=+2").failures, with_nodes(cluster, "a=2").failures
    assert more is not None and [each.node for each in more.outages] == [5, 2]
    assert fewer is not None and [each.node for each in fewer.outages] == [2]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("+20kW", (24_000.0, 26_000.0)),
        ("-500 W", (3_500.0, 5_500.0)),
        ("-10%", (3_600.0, 5_400.0)),
        ("+1.5e3", (5_500.0, 7_500.0)),
    ],
)
def test_a_relative_budget_moves_every_hour_of_the_day(
    text: str, values: tuple[float, ...]
) -> None:
    """The times of its changes stay."""
    changed = with_budget(DAY, text)
    assert changed.values == pytest.approx(values)
    assert (changed.times_s, changed.period_s) == (DAY.times_s, DAY.period_s)


def test_an_absolute_budget_takes_the_place_of_the_old_one() -> None:
    """It applies at all times."""
    assert with_budget(DAY, "4.5kW") == with_budget(None, "4500W") == StepFunction.constant(4_500.0)


@pytest.mark.parametrize(
    ("budget", "text", "said"),
    [
        (None, "+20kW", "no power budget to change"),
        (StepFunction.constant(math.inf), "-10%", "no power budget to change"),
        (DAY, "10%", "needs a sign"),
        (DAY, "plenty", "write"),
        (DAY, "+20 horses", "not a power"),
    ],
)
def test_an_impossible_budget_is_refused_in_words(
    budget: StepFunction | None, text: str, said: str
) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=said):
        with_budget(budget, text)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (Changes(("a10=h100",)), "did you mean 'a100'"),
        (Changes(("a100=h1000",)), "no GPU called"),
        (Changes(("a100",)), "write OLD=NEW"),
        (Changes(nodes=("4",)), "write \\+4"),
        (Changes(nodes=("c=+1",)), "no group 'c'"),
        (Changes(nodes=("a100=-1",)), "would have 0 nodes"),
    ],
)
def test_an_impossible_cluster_is_refused_in_words(changes: Changes, said: str) -> None:
    """The error for a wrong name lists the existing ones."""
    with pytest.raises(ConfigError, match=said):
        changes.cluster(load_cluster("thesis"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (Changes(("a100=h100",)), "With h100 in place of a100"),
        (Changes(nodes=("+4", "old=-1")), "With 4 more nodes and 1 fewer node of old"),
        (
            Changes(nodes=("new=8",), budget="4500W"),
            "With 8 nodes of new and a power budget of 4500W",
        ),
        (Changes(budget="-10%"), "With a power budget changed by -10%"),
    ],
)
def test_changes_are_said_in_words(changes: Changes, said: str) -> None:
    """The answer begins with them."""
    assert changes.label == said
