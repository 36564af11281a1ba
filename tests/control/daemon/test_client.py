"""Promises of levers behind the daemon: the contract, and every command that uses levers."""

import signal
from collections.abc import Iterator

import pytest

from tests.control.conftest import eventually
from tests.control.daemon.conftest import DEFAULT_W, ME, RULES, DaemonRig, made_rig, tidied
from tests.support.cpufreq_tree import CpufreqTree
from tests.support.powercap_tree import PowercapTree
from wattloop.control.daemon.client import RemoteLever
from wattloop.control.daemon.protocol import SOCKET_VARIABLE
from wattloop.control.registry import LeverInventory, daemon_levers
from wattloop.control.session import lever_session
from wattloop.core.errors import ConfigError, LeverError
from wattloop.hardware.host import Host
from wattloop.testing.lever_contract import check_lever

LIMIT = "gpu:0/power_limit"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonRig, CpufreqTree]]:
    """Make two virtual GPUs, two cpufreq policies that differ, and a package with a power limit."""
    rig = made_rig(tmp_path_factory.mktemp("tree"))
    root = rig.folder / "sys"
    cpufreq = CpufreqTree(root)
    cpufreq.add_policy(governor="powersave", bounds_mhz=(800, 3000))
    cpufreq.add_policy(governor="performance", bounds_mhz=(1000, 1200))
    PowercapTree(root).add_package(0, max_power_w=200, limit_w=150)
    rig.extra["WATTLOOP_SYSFS_ROOT"] = str(root)
    rig.start()
    yield rig, cpufreq
    tidied(rig)


def remote(rig: DaemonRig, name: str) -> RemoteLever:
    client = rig.connect()
    (offer,) = [offer for offer in client.levers() if offer["name"] == name]
    return RemoteLever(client, offer)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (LIMIT, [300.0, 450.5], [10.0, 9_999.0, "fast"]),
        ("gpu:0/sm_clock", [600.0, 1_005.0], [1.0, 9_999.0, "fast"]),
        ("cpu:0/power_limit_long_term", [100.0, 120.0], [-5.0, 900.0, "fast"]),
        ("cpu/governor", ["performance"], ["turbo", 5.0]),
    ],
)
def test_the_contract_of_levers_is_kept(
    tree: tuple[DaemonRig, CpufreqTree], name: str, good: list[object], bad: list[object]
) -> None:
    """State, limits, reading back and restoring, as for every lever."""
    rig, _ = tree
    check_lever(lambda: remote(rig, name), good=good, bad=bad)  # type: ignore[arg-type]  # values


def test_parts_that_differ_go_back_to_what_each_was(tree: tuple[DaemonRig, CpufreqTree]) -> None:
    """Two cores with different governors and bounds are set together and restored separately."""
    rig, cpufreq = tree
    levers = [remote(rig, f"cpu/{leaf}") for leaf in ("governor", "min_frequency", "max_frequency")]
    for lever in levers[1:]:
        lever._client = levers[0]._client  # one device, one lease, as the registry makes them

    def shown() -> list[str]:
        leaves = ("scaling_governor", "scaling_min_freq", "scaling_max_freq")
        return [policy.read(leaf) for policy in cpufreq.policies for leaf in leaves]

    before = shown()
    with lever_session(levers) as held:
        # the lower bound exceeds the old upper one of a core: the order matters
        held.set(
            {
                "cpu/governor": "powersave",
                "cpu/min_frequency": 1_500.0,
                "cpu/max_frequency": 2_000.0,
            }
        )
        assert shown() == ["powersave", "1500000", "2000000"] * 2
    assert shown() == before


def test_a_hold_leaves_no_journal_of_its_own(tree: tuple[DaemonRig, CpufreqTree]) -> None:
    """The daemon has the journal; a killed client leaves nothing to clean up."""
    rig, _ = tree
    lever = remote(rig, LIMIT)
    with lever_session([lever]) as held:
        assert held.guardian_pid is None
        held.set({LIMIT: 400.0})
        assert rig.limit_w() == 400.0
        assert len(rig.journals()) == 1
        with (
            pytest.raises(LeverError, match=f"held by {ME}"),
            lever_session([remote(rig, LIMIT)]) as other,
        ):
            other.set({LIMIT: 500.0})
    assert rig.limit_w() == DEFAULT_W
    assert [result.fate.value for result in held.restored] == ["restored"]


def test_a_value_the_rules_forbid_is_a_wrong_value(rig: DaemonRig) -> None:
    """The error comes before any lever is set, with the range in the message and in the state."""
    rig.write_rules(RULES.replace('"*/*": any', '"*/*": 300 W to 60%'))
    rig.start()
    lever = remote(rig, LIMIT)
    state = lever.state()
    assert (state.low, state.high, state.value) == (300.0, 420.0, DEFAULT_W)
    with pytest.raises(ConfigError, match="421 W is outside 300 to 420 W"):
        lever.accepted(421.0)
    with lever_session([lever]) as held:  # and it returns to 700 W, which this user may not set
        held.set({LIMIT: 420.0})
    assert rig.limit_w() == DEFAULT_W


def test_without_a_socket_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a daemon nothing changes and nothing is slower; an empty name switches it off."""
    found = LeverInventory()
    monkeypatch.setenv(SOCKET_VARIABLE, "")
    assert daemon_levers(found, Host()) is found
    monkeypatch.setenv(SOCKET_VARIABLE, "/nowhere/c.sock")
    (line,) = daemon_levers(found, Host()).absent
    assert "no control daemon answers at /nowhere/c.sock" in line.reason


def test_commands_use_the_daemon_where_it_holds_the_device(rig: DaemonRig) -> None:
    """`devices` shows it, `set` sets through it, also over a default cap; then it is restored."""
    rig.write_rules("default_cap: -10%\n" + RULES)
    rig.start()
    named = {SOCKET_VARIABLE: str(rig.socket)}
    shown = rig.wattloop("devices", **named)
    assert "630 W" in shown.stdout and "through the control daemon" in shown.stdout
    program = "import time; print(open('virtual.state', 'rb').read(1) != b'')"
    done = rig.wattloop(
        "set", "--json", "set.json", f"{LIMIT}=70%", "--", "python3", "-c", program, **named
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
    assert [(x["before"], x["after"]) for x in rig.log("set")] == [(630.0, 490.0)]
    assert eventually(lambda: rig.limit_w() == 630.0)
    denied = rig.wattloop("set", f"{LIMIT}=70%", "--", "true", **{SOCKET_VARIABLE: ""})
    assert denied.returncode == 2 and "control-daemon" in denied.stderr  # the owner
    assert rig.end(signal.SIGTERM) == 0
