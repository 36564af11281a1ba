"""Promises of the rules: which users may set which values, and errors by line."""

from pathlib import Path

import pytest

from tests.control.daemon.conftest import GROUP
from wattloop.control.daemon.job_gpus import JobGpus, write_job_gpus
from wattloop.control.daemon.protocol import Peer, PermissionDenied
from wattloop.control.daemon.rules import (
    LeverAmount,
    Range,
    matches,
    parse_amount,
    parse_range,
    read_rules,
)
from wattloop.control.lever import LeverState
from wattloop.core.errors import ConfigError

ALICE = Peer(10, 1000, frozenset({1000, GROUP.gr_gid}), "alice", "python train.py")
BOB = Peer(11, 1001, frozenset({1001}), "bob", "python")


def gpu(number: int = 0) -> LeverState:
    return LeverState(
        name=f"gpu:{number}/power_limit",
        available=True,
        value=400.0,
        unit="W",
        low=100.0,
        high=450.0,
        default=400.0,
    )


def clock() -> LeverState:
    return LeverState(name="gpu:0/sm_clock", available=True, unit="MHz", low=200.0, high=2000.0)


@pytest.fixture
def rules_path(tmp_path: Path) -> Path:
    return tmp_path / "rules.yaml"


def test_ranges_are_read_as_people_write_them() -> None:
    """Watts, shares and MHz; one bound may be missing; names for a choice."""
    assert parse_range("100 W to 400 W") == Range(LeverAmount(100, "W"), LeverAmount(400, "W"))
    assert parse_range("100 to 400W") == Range(LeverAmount(100, "W"), LeverAmount(400, "W"))
    assert parse_range("50% to 100%") == Range(LeverAmount(50, "%"), LeverAmount(100, "%"))
    assert parse_range("0.6 GHz to 1.5 GHz") == Range(
        LeverAmount(600, "MHz"), LeverAmount(1500, "MHz")
    )
    assert parse_range("to 400 W") == Range(None, LeverAmount(400, "W"))
    assert parse_range(["powersave"]) == Range(choices=("powersave",))
    assert parse_amount("-10%") == LeverAmount(90, "%")
    for wrong in (
        "100",
        "W",
        "400 W to 100 W",
        "1 W to 5 MHz",
        "-5 W to 3 W",
        "to",
        "",
        [],
        5,
        None,
    ):
        with pytest.raises(ValueError, match="write"):
            parse_range(wrong)


def test_a_range_is_judged_in_the_devices_own_unit() -> None:
    """A share is of the TDP; the device's own limits stay."""
    half = parse_range("50% to 100%")
    assert half.limits(gpu()) == (200.0, 400.0)
    assert half.refusal(gpu(), 200.0) == ""
    assert "199 W is outside 200 to 400 W" in half.refusal(gpu(), 199.0)
    assert "401 W" in half.refusal(gpu(), 401.0)
    assert parse_range("1 W to 9000 W").limits(gpu()) == (100.0, 450.0)
    assert "not in MHz" in parse_range("1 MHz to 2 MHz").refusal(gpu(), 200.0)


def test_unlocking_a_clock_needs_the_whole_range() -> None:
    """None would leave the clock to the device, which then runs as fast as it can."""
    assert "would pass" in parse_range("600 to 1500 MHz").refusal(clock(), None)
    assert parse_range("600 to 2000 MHz").refusal(clock(), None) == ""
    assert parse_range("any").refusal(clock(), None) == ""


def test_patterns_name_levers_as_the_command_line_does() -> None:
    """`gpu/power_limit` is that of all GPUs."""
    assert matches("gpu:*/power_limit", "gpu:3/power_limit")
    assert matches("gpu/power_limit", "gpu:3/power_limit")
    assert matches("cpu/governor", "cpu/governor")
    assert not matches("gpu:1/power_limit", "gpu:11/power_limit")
    assert not matches("gpu/power_limit", "gpu:3/sm_clock")


def test_what_no_rule_allows_is_forbidden(rules_path: Path) -> None:
    """Everything is forbidden by default, and a rule for one lever allows no other."""
    rules_path.write_text('rules: [{uids: [1000], levers: {"gpu:*/power_limit": 100 W to 300 W}}]')
    rules = read_rules(rules_path)
    rules.check(ALICE, gpu(), 300.0)
    with pytest.raises(PermissionDenied, match=r"301 W is outside 100 to 300 W.*lets alice set"):
        rules.check(ALICE, gpu(), 301.0)
    with pytest.raises(PermissionDenied, match=r"no rule of .* lets bob set it"):
        rules.check(BOB, gpu(), 300.0)
    with pytest.raises(PermissionDenied, match="lets alice set it"):
        rules.check(ALICE, clock(), 1000.0)
    with pytest.raises(PermissionDenied, match="no low_power mode"):
        rules.low_power_for(ALICE, gpu())


@pytest.mark.parametrize(
    ("rule", "value_w"),
    [
        ('levers: {"gpu:*/power_limit": 100 W to 200 W}', 200.0),
        ('levers: {"gpu:*/power_limit": 350 W to 400 W}', 350.0),
        ('levers: {"gpu:*/power_limit": 100 W to 400 W}', 300.0),
        ('levers: {"gpu:*/sm_clock": any}', None),
        ('levers: {"gpu:1/power_limit": any}', None),
        ("", 300.0),
    ],
)
def test_low_power_stays_inside_its_rule(
    rules_path: Path, rule: str, value_w: float | None
) -> None:
    """Not above or below its range, nor on a lever that the rule does not name."""
    words = ", ".join(filter(None, ("uids: [1000]", "low_power: true", rule)))
    # another rule's levers do not count
    others = 'uids: [1000], levers: {"gpu:*/power_limit": any}'
    rules_path.write_text(f"low_power: 300 W\nrules: [{{{words}}}, {{{others}}}]")
    rules = read_rules(rules_path)
    if value_w is None:
        with pytest.raises(PermissionDenied, match="gives alice low_power"):
            rules.low_power_for(ALICE, gpu())
    else:
        assert rules.low_power_for(ALICE, gpu()) == value_w


def test_own_gpus_are_those_of_the_agents_list(tmp_path: Path, rules_path: Path) -> None:
    """Not those of another user, nor without a list, nor from a list that any user may write."""
    jobs = tmp_path / "jobs.json"
    rules_path.write_text(
        f"jobs_file: {jobs}\n"
        f'rules: [{{groups: ["{GROUP.gr_name}"], only_own_gpus: true, levers: {{"*/*": any}}}}]'
    )
    rules = read_rules(rules_path)
    with pytest.raises(PermissionDenied, match="only GPUs of their own jobs here: none"):
        rules.check(ALICE, gpu(1), 200.0)
    write_job_gpus(jobs, [JobGpus("7", 1000, (1,)), JobGpus("8", 1001, (0,))])
    rules.check(ALICE, gpu(1), 200.0)
    with pytest.raises(PermissionDenied, match="here: gpu:1"):
        rules.check(ALICE, gpu(0), 200.0)
    jobs.chmod(0o666)
    with pytest.raises(PermissionDenied, match="others may write it"):
        rules.check(ALICE, gpu(1), 200.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "rules:\n- uids: [1]\n  lever: {}\n",
            r"rules.yaml:3: rules.0.lever: .*did you mean 'levers'",
        ),
        ("rules:\n- levers: {a/b: any}\n", r"rules.yaml:2: rules.0: it names no user"),
        ("rules:\n- uids: [1]\n", r"rules.yaml:2: rules.0: it allows nothing"),
        ("rules:\n- users: [noone]\n  low_power: true", r"rules.yaml:2: .*unknown user 'noone'"),
        ("rules:\n- groups: [noone]\n  low_power: true", r"rules.yaml:2: .*unknown group 'noone'"),
        ("\ndefault_cap: 250\n", r"rules.yaml:2: default_cap: gpu:\*/power_limit: '250' lacks its"),
        ("low_power: 170%", r"rules.yaml:1: low_power: .*is not a cap"),
        ("socket: {mode: 660}", r"rules.yaml:1: socket.mode: .*such as 0660"),
        ("socket: {group: noone}", r"rules.yaml:1: socket.group: unknown group"),
        ("log: here", r"rules.yaml:1: log: write the whole path"),
        ("version: 2", r"rules.yaml:1: version: .*1"),
        ("rules:\n- uids: [1]\n  levers: {a/b: '5'}", r"rules.yaml:3: .*a/b: write a range as"),
        ("rules:\n- everyone: true\n  only_own_gpus: true\n  low_power: true", "needs jobs_file"),
        ("log: [", r"rules.yaml:1: not valid YAML"),
        ("log: /a\nlog: /b", "given twice"),
    ],
)
def test_faults_name_file_line_and_field(rules_path: Path, text: str, complaint: str) -> None:
    """The message shows an operator where to correct the file."""
    rules_path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_rules(rules_path)


def test_rules_that_others_can_write_are_not_read(tmp_path: Path, rules_path: Path) -> None:
    """This covers the file, its folder and links."""
    rules_path.write_text("rules: []\n")
    assert read_rules(rules_path).rules == ()
    link = tmp_path / "link.yaml"
    link.symlink_to(rules_path)
    with pytest.raises(ConfigError, match="symbolic link"):
        read_rules(link)
    rules_path.chmod(0o664)
    with pytest.raises(ConfigError, match=r"chmod go-w .*rules.yaml"):
        read_rules(rules_path)
    rules_path.chmod(0o644)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=f"{tmp_path.name}: others may write it"):
        read_rules(rules_path)
    tmp_path.chmod(0o755)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "rules").symlink_to(tmp_path)  # a user who can change the link chooses the rules
    with pytest.raises(ConfigError, match="shared: others may write it"):
        read_rules(shared / "rules" / "rules.yaml")
    with pytest.raises(ConfigError, match=r"no rules there.*--rules"):
        read_rules(tmp_path / "none.yaml")
