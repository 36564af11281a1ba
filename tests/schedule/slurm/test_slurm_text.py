"""Promises of Slurm's short forms: node lists, GPUs, reservations, AdminComment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattloop.core.errors import SlurmError
from wattloop.fleet.slurm_text import expand_nodes, format_notes, parse_notes
from wattloop.schedule.slurm.client import nodes_from, reservations_from, update_command
from wattloop.schedule.slurm.squeue import parse_gpus


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,07],gpu2", ["n1", "n2", "n3", "n07", "gpu2"]),
        ("r[1-2]c[08-10]", [f"r{r}c{c}" for r in (1, 2) for c in ("08", "09", "10")]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    """Ranges, leading zeros, several brackets."""
    assert expand_nodes(text) == names


@pytest.mark.parametrize("text", ["n[1-999999999]", "n[3-1]", "n[a-b]", "n[1-400]m[1-400]"])
def test_node_lists_that_make_no_sense_or_too_many_are_refused(text: str) -> None:
    """Such a list does not fill the memory."""
    with pytest.raises(SlurmError):
        expand_nodes(text)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:4(S:0-1)", ("a100", 4)),
        ("gres:gpu:2", ("", 2)),
        ("gpu", ("", 1)),
        ("gres/gpu:h100=8", ("h100", 8)),
        ("gpu:A100:1,gpu:h100:1,shard:3", ("a100", 2)),
        ("craynetwork:1", ("", 0)),
        ("(null)", ("", 0)),
    ],
)
def test_gpus_in_a_gres(text: str, gpus: tuple[str, int]) -> None:
    """Type and count, other resources left out."""
    assert tuple(parse_gpus(text)) == gpus


def test_a_node_that_takes_no_jobs_is_away() -> None:
    """Drained, down, not responding; 22.05 has one word where later versions have a list."""
    states = [("idle", []), ("mixed", ["RESERVED"]), ("down", []), ("idle", ["DRAIN"])]
    listed = [
        {"name": f"n{n}", "gres": "gpu:a100:4", "state": state, "state_flags": flags}
        for n, (state, flags) in enumerate(states)
    ]
    listed.append({"name": "n9", "gres": "gpu:a100:4", "state": ["IDLE", "NOT_RESPONDING"]})
    assert [node.is_up for node in nodes_from({"nodes": [*listed, 7]})] == [
        True,
        True,
        *3 * [False],
    ]


def test_reservations() -> None:
    """Names, users, and whether they hold now."""
    text = (
        "ReservationName=wattloop_1 StartTime=1 EndTime=1794769000 Duration=00:00:20 Nodes=n[1-2] "
        "Users=root,ada Groups=(null) State=ACTIVE\nNo reservations in the system\n"
    )
    (found,) = reservations_from(text)
    assert (found.name, found.end_s, found.users) == ("wattloop_1", 1794769000, ("root", "ada"))
    assert found.is_active


def test_our_notes_leave_other_words_alone() -> None:
    """A ticket number before and a user's tag after stay; a note of None is removed."""
    text = format_notes("ticket 12", {"cap_w": 250.0})
    assert text == 'ticket 12 wattloop:{"cap_w":250.0}'
    text = format_notes(f"{text} vip", {"energy_j": 12.5})
    assert parse_notes(text) == {"cap_w": 250.0, "energy_j": 12.5}
    assert text.startswith("ticket 12 vip ")
    assert format_notes(text, {"cap_w": None, "energy_j": None}) == "ticket 12 vip"


@given(st.text(max_size=300))
def test_any_admin_comment_can_be_noted_in(text: str) -> None:
    """The note reads back with any other text, and is one line."""
    if "wattloop:" not in text:
        found = format_notes(text, {"cap_w": 250.0})
        assert parse_notes(found) == {"cap_w": 250.0}
        assert "\n" not in found


def test_no_value_begins_another_field() -> None:
    """Arguments go to scontrol one by one, without a shell; line breaks are refused."""
    words = update_command("17", {"AdminComment": "x JobId=18 Priority=1"})
    assert words == ("scontrol", "update", "JobId=17", "AdminComment=x JobId=18 Priority=1")
    with pytest.raises(SlurmError):
        update_command("17", {"AdminComment": "a\nJobId=18"})
