"""Promises of cluster files: the cluster is built as written; an error names line and remedy."""

from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import cluster_from, load_cluster, shipped_clusters

WHOLE = """\
name: ours
groups:
  - {name: old, gpu: v100-sxm-16, type: v100, nodes: 3, gpus_per_node: 4, host_w: 300 W,
     host_busy_w_per_gpu: 20}
  - {name: new, gpu: A100-SXM4-40GB, type: a100, nodes: 2, gpus_per_node: 8, host_w: 0.4 kW,
     idle_w: 50, limit_w: 75%, link_bytes_s: 300 GB/s, exchange_w: 70%}
network_w: 1.5 kW
hop_s: 10.5 ms
network_bytes_s: 100 Gbit/s
failures: {mtbf: 30 d, mttr: 4 h, outages: [{node: old-1, at: 1 h, for: 30 min}]}
sources: {old.host_w: "our wall meter, 2026"}
"""
GROUP = "gpu: a40, nodes: 1, gpus_per_node: 8, host_w: 0"


def read(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "ours.yaml"
    path.write_text(text)
    return load_cluster(str(path))


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    """Every field, with units."""
    cluster = read(tmp_path, WHOLE)
    old, new = cluster.groups
    assert (cluster.name, cluster.gpus, cluster.gpus_by_type) == ("ours", 28, (12, 16))
    assert (old.nodes, old.gpus_per_node, old.host_w, old.host_busy_w_per_gpu) == (3, 4, 300, 20)
    assert (new.type_name, new.host_w) == ("a100", 400)
    assert cluster.types[1].gpu == gpu_named("a100-sxm-40")
    assert (cluster.types[1].idle_w, cluster.types[1].link_bytes_s) == (50, 300e9)
    assert (cluster.network_w, cluster.network_bytes_s) == (1_500, 12.5e9)
    assert (cluster.hop_s, cluster.types[1].exchange_w) == (0.0105, 280)
    assert cluster.types[0].exchange_w is None
    assert cluster.idle_w == 3 * (300 + 4 * 57) + 2 * (400 + 8 * 50) + 1_500
    assert cluster.sources["old.host_w"] == "our wall meter, 2026"
    assert cluster.failures is not None
    assert cluster.failures.outages[0] == (3_600, 5_400, 1)
    assert (cluster.failures.mtbf_s, cluster.failures.mttr_s) == (30 * 86_400, 4 * 3_600)


def test_the_operators_limit_bounds_every_cap(tmp_path: Path) -> None:
    """No job gets more than the operator allows; a share refers to the factory's limit."""
    a100 = read(tmp_path, WHOLE).types[1]
    assert [a100.cap_w(share) for share in (1.0, 0.75, 0.5, 0.1)] == [300, 300, 200, 100]


def test_idle_power_comes_from_the_table_or_is_marked_as_estimated(tmp_path: Path) -> None:
    """An unpublished figure is never shown as a published one."""
    text = "groups:\n" + "".join(
        f"  - {{gpu: {gpu}, nodes: 1, gpus_per_node: 2, host_w: 0}}\n"
        for gpu in ("h200", "k80", "mi300x")
    )
    cluster = read(tmp_path, text)
    assert [kind.idle_w for kind in cluster.types] == [80, 0.30 * 150, 0.15 * 750]
    said = [cluster.sources[f"{kind.name}.idle_w"] for kind in cluster.types]
    assert [text.startswith("estimated") for text in said] == [False, True, True]


def test_a_name_that_fits_several_gpus_is_said(tmp_path: Path) -> None:
    """The chosen variant is among the sources."""
    cluster = read(tmp_path, "groups:\n  - {gpu: a100, nodes: 1, gpus_per_node: 8, host_w: 0}\n")
    assert cluster.types[0].gpu.name == "a100-sxm-80"
    assert "taken as a100-sxm-80" in cluster.sources["a100.gpu"]


def test_a_users_gpu_file_is_found_next_to_the_cluster_file(tmp_path: Path) -> None:
    """It is found from any working directory."""
    (tmp_path / "h100-nvl.yaml").write_text("like: h100-pcie\ntdp_w: 400\ncap_max_w: 400\n")
    text = "groups:\n  - {gpu: h100-nvl.yaml, nodes: 1, gpus_per_node: 4, host_w: 0}\n"
    kind = read(tmp_path, text).types[0]
    assert (kind.name, kind.tdp_w) == ("h100-nvl", 400)


def test_a_typical_host_is_an_estimate(tmp_path: Path) -> None:
    """It draws some power at rest and more at work, and names its source."""
    text = "groups:\n  - {gpu: h100-sxm, nodes: 1, gpus_per_node: 8, host_w: typical}\n"
    cluster = read(tmp_path, text)
    group = cluster.groups[0]
    assert 300 < group.host_w < 1_500
    assert 30 < group.host_busy_w_per_gpu < 300
    assert "estimated" in cluster.sources["h100-sxm.host_w"]
    assert "DGX H100" in cluster.sources["h100-sxm.host_busy_w_per_gpu"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"ours\.yaml: is empty; a cluster has at least 'groups'"),
        ("name: x", r"ours\.yaml: groups: it is missing"),
        ("groups: []", r":1: groups: .*at least 1"),
        ("groups: 3", r":1: groups: write a list"),
        (f"grups:\n  - {{{GROUP}}}", r":1: grups: unknown field; did you mean 'groups'\?"),
        (f"groups:\n  - {{{GROUP}, hots_w: 3}}", r":2: groups\.0\.hots_w: .*mean 'host_w'"),
        ("groups:\n  - {gpu: a40, nodes: 1, gpus_per_node: 8}", r"host_w: power of a node"),
        (
            "groups:\n  - {gpu: a4000, nodes: 1, gpus_per_node: 8, host_w: 0}",
            r":2: groups\.0\.gpu: no GPU called 'a4000': did you mean",
        ),
        (f"groups:\n  - {{{GROUP}, nodes: -1}}", r"'nodes' is given twice"),
        (
            "groups:\n  - gpu: a40\n    nodes: -1\n    gpus_per_node: 0\n    host_w: 0",
            r":3: groups\.0\.nodes: .*greater than or equal to 1, not -1\n.*:4: .*gpus_per_node",
        ),
        ("groups:\n  - {gpu: a40, nodes: 1.5, gpus_per_node: 8, host_w: 0}", r"nodes: .*integer"),
        ("groups:\n  - {gpu: a40, nodes: true, gpus_per_node: 8, host_w: 0}", r"nodes: .*integer"),
        (
            "groups:\n  - {gpu: a40, nodes: 1, gpus_per_node: 8, host_w: .nan}",
            r"host_w: write watts, 0 or more, or 'typical', not nan$",
        ),
        (
            "groups:\n  - {gpu: a40, nodes: 1, gpus_per_node: 8, host_w: -5}",
            r"host_w: write watts.*not -5",
        ),
        (
            "groups:\n  - {gpu: a40, nodes: 1, gpus_per_node: 8, host_w: 5 A}",
            r"'5 A' is not a power",
        ),
        (f"groups:\n  - {{{GROUP}, idle_w: 500}}", r"idle_w: 500 W is above .*300 W"),
        (f"groups:\n  - {{{GROUP}, limit_w: 50 W}}", r"limit_w: 50 W cannot be set: a40 takes 100"),
        (f"groups:\n  - {{{GROUP}, limit_w: 120%}}", r"limit_w: '120%' is not between"),
        (
            f"groups:\n  - {{{GROUP}}}\n  - {{{GROUP}}}",
            r":3: groups\.1\.gpu: 'a40' is the name of two",
        ),
        (
            f"groups:\n  - {{{GROUP}}}\n  - {{{GROUP}, name: b, idle_w: 9}}",
            r":3: groups\.1\.gpu: GPU type 'a40' is described differently",
        ),
        (
            f"groups:\n  - {{{GROUP}}}\nfailures: {{mtbf: 3 d}}",
            r":3: failures: mtbf .* and mttr .* go together",
        ),
        (
            f"groups:\n  - {{{GROUP}}}\nfailures:\n  outages:\n    - {{node: b-0, at: 1, for: 1}}",
            r":5: failures\.outages\.0\.node: no node 'b-0'; they are called a40-0",
        ),
        (
            f"groups:\n  - {{{GROUP}}}\nfailures: {{outages: [{{node: 0, at: soon, for: 1}}]}}",
            r"failures\.outages\.0\.at: 'soon' is not a time",
        ),
    ],
)
def test_a_fault_names_its_line_and_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    """File, line, field, the fault and the allowed values."""
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text)


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    """A user can correct all errors of a file at once."""
    text = "groups:\n  - gpu: a41\n    nodes: 1\n    gpus_per_node: 1\n    host_w: 0\n" * 1
    text += "  - gpu: zz\n    nodes: 1\n    gpus_per_node: 1\n    host_w: 0\n"
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["2", "6"]


def test_plain_data_is_a_cluster_too() -> None:
    """Programs may pass it; an error then names the field alone."""
    group = {"gpu": "a40", "nodes": 2, "gpus_per_node": 4, "host_w": 0}
    assert cluster_from({"groups": [group]}, name="lab").name == "lab"
    with pytest.raises(ConfigError, match=r"^lab: groups\.0\.nodes"):
        cluster_from({"groups": [{**group, "nodes": 0}]}, name="lab")


def test_a_wrong_name_is_an_error_with_near_ones() -> None:
    """It also lists the other possible values."""
    with pytest.raises(ConfigError, match=r"no cluster called 'thesiss': did you mean 'thesis'"):
        load_cluster("thesiss")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_cluster("none/such.yaml")


def test_the_thesis_cluster_is_the_thesiss() -> None:
    """5.5.1: 8 A100-40 of 400 W and 8 H100-80 of 700 W, GPUs only."""
    cluster = load_cluster("thesis")
    assert [(kind.name, kind.tdp_w) for kind in cluster.types] == [("a100", 400), ("h100", 700)]
    assert [round(kind.gpu.memory_bytes / 2**30) for kind in cluster.types] == [40, 80]
    assert cluster.gpus_by_type == (8, 8)
    assert cluster.idle_w == sum(8 * kind.idle_w for kind in cluster.types)
    assert load_cluster("thesis-hosts").idle_w > cluster.idle_w + 2_000


def test_the_philly_cluster_has_the_sizes_of_phillys_machine_list() -> None:
    """552 nodes, 2,490 GPUs, three types."""
    cluster = load_cluster("philly")
    assert (len(cluster.node_names), cluster.gpus, len(cluster.types)) == (552, 2_490, 3)
    assert [kind.name for kind in cluster.types] == ["k80", "p100", "v100"]


def test_every_shipped_cluster_loads_and_says_where_its_figures_come_from() -> None:
    """The notes say what is counted, or why not."""
    ours = ["philly", "thesis", "thesis-as-published", "thesis-hosts", "thesis-sleep"]
    assert list(shipped_clusters()) == ours
    for name, description in shipped_clusters().items():
        sources = load_cluster(name).sources
        assert description
        assert {"*", "network_w", "network_bytes_s"} <= set(sources)
        assert any("host_w" in figure for figure in sources)


def test_power_while_exchanging_lies_between_rest_and_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"500 W is not between the .* and the limit of 300 W"):
        read(tmp_path, f"groups:\n  - {{{GROUP}, exchange_w: 500}}\n")


def test_power_down_states_are_read_with_their_defaults(tmp_path: Path) -> None:
    """Transitions at idle power, entered after the break-even time; powers go down."""
    states = "idle_w: 50, gpu_sleep: [{power_w: 10, enter: 5 s, exit: 10 s}]"
    cluster = read(tmp_path, f"groups:\n  - {{{GROUP}, {states}}}\n")
    (state,) = cluster.types[0].sleeps
    assert (state.enter_j, state.exit_j, state.after_s) == (250.0, 500.0, pytest.approx(15.0))
    assert cluster.can_sleep
    assert cluster.resting_w == (10.0,)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ("[{power_w: 60, enter: 1, exit: 1}]", "60 W is not below the 50 W"),
        ("[{power_w: 10, enter: 0, exit: 1, enter_j: 5}]", "enter_j is 5 J in no time"),
        ("[{power_w: 10, enter: 1}]", "exit"),
        (
            "[{power_w: 10, enter: 9, exit: 1, after: 30}, {power_w: 5, enter: 1, exit: 1}]",
            "before the state above it is; give a longer 'after'",
        ),
    ],
)
def test_impossible_power_down_states_are_refused(tmp_path: Path, states: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, f"groups:\n  - {{{GROUP}, idle_w: 50, gpu_sleep: {states}}}\n")
