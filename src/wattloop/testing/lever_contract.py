"""Contract test of levers, also of third parties.

def test_my_lever_keeps_the_contract():
    check_lever(lambda: MyLever(...), good=[200.0, 250.0], bad=[10.0, 9999.0, "fast"])
"""

import math
import re
from collections.abc import Callable, Sequence

from wattloop.control.lever import Lever, LeverState, Setting
from wattloop.core.errors import ConfigError

NAME = re.compile(r"[a-z][a-z0-9_-]*(:\d+)?(/[a-z][a-z0-9_-]*(:\d+)?)+")
UNITS = {"W", "MHz", "name"}


def check_lever(
    make: Callable[[], Lever], *, good: Sequence[Setting], bad: Sequence[Setting]
) -> None:
    """Raise AssertionError with the promise that the lever breaks. Leaves it as it was.

    Args:
        make: returns the lever; called more than once, as by another process.
        good: values that its device takes, at least two, different from the present one.
        bad: values that it must refuse.
    """
    lever = make()
    _check_declaration(lever, make())
    _check_state(lever)
    before = dict(lever.parts())
    assert before, f"{lever.name}: a lever has at least one part"
    for part, value in before.items():
        assert lever.read_part(part) == value, f"{lever.name}: read_part of {part!r}"
    for value in bad:
        _check_refused(lever, value)
    assert dict(make().parts()) == before, f"{lever.name}: looking and refusing change nothing"
    try:
        for value in good:
            _check_taken(lever, make, value)
    finally:
        for part, previous in before.items():
            lever.check_part(part, previous)
            lever.write_part(part, previous)
    after = dict(make().parts())
    for part, previous in before.items():
        assert lever.same(after[part], previous), (
            f"{lever.name} {part}: {previous!r} was put back, {after[part]!r} is there"
        )


def _check_declaration(lever: Lever, again: Lever) -> None:
    assert NAME.fullmatch(lever.name), f"{lever.name!r}: names look like gpu:0/power_limit"
    assert lever.device, f"{lever.name}: a lever names its device"
    assert (again.name, again.device) == (lever.name, lever.device), (
        f"{lever.name}: found again, it must have the same name and device"
    )
    assert lever.tolerance >= 0, f"{lever.name}: tolerance {lever.tolerance}"
    for name, value in lever.where().items():
        assert name.startswith("WATTLOOP_") and value, f"{lever.name}: where() has {name}={value!r}"


def _check_state(lever: Lever) -> None:
    state = lever.state()
    assert isinstance(state, LeverState) and state.name == lever.name, f"{lever.name}: its state"
    assert state.available or state.reason, f"{lever.name}: not available, and no reason"
    assert state.unit in UNITS, f"{lever.name}: unit {state.unit!r}"
    assert state.source, f"{lever.name}: a state says where it was read"
    if state.unit == "name":
        assert state.choices, f"{lever.name}: a choice without choices"
        return
    for what in ("low", "high", "default"):
        value = getattr(state, what)
        assert value is None or (isinstance(value, float) and math.isfinite(value)), (
            f"{lever.name}: {what} is {value!r}"
        )
    if state.low is not None and state.high is not None:
        assert state.low <= state.high, f"{lever.name}: {state.low} to {state.high}"


def _check_refused(lever: Lever, value: Setting) -> None:
    try:
        taken = lever.accepted(value)
    except ConfigError as error:
        assert lever.name in str(error), f"{lever.name}: the refusal does not name it: {error}"
        return
    raise AssertionError(f"{lever.name} accepts {value!r} as {taken!r}")


def _check_taken(lever: Lever, make: Callable[[], Lever], value: Setting) -> None:
    taken = lever.accepted(value)
    assert lever.accepted(taken) == taken, f"{lever.name}: {taken!r} is accepted as another value"
    text = lever.write_text(taken)
    assert text and isinstance(text, str), f"{lever.name}: write_text says what would be written"
    parts = lever.parts_of(taken)
    assert set(parts) == set(lever.parts()), f"{lever.name}: {value!r} leaves other parts"
    for part, own in parts.items():
        lever.check_part(part, own)
        assert lever.write_part_text(part, own), f"{lever.name}: write_part_text of {part!r}"
    lever.write(taken)
    if not lever.reads_back:
        return
    shows = make().parts()
    for part, own in parts.items():
        assert lever.took(own, shows[part]), (
            f"{lever.name} {part}: {own!r} was written, another process reads {shows[part]!r}"
        )
