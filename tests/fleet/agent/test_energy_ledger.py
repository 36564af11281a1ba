"""Promises of the ledger: whatever comes and goes, its accounts add up to the node."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.agent.test_job_shares import PACKAGE, PARTS
from wattloop.fleet.agent.job_shares import (
    UNATTRIBUTED,
    Account,
    EnergyLedger,
    NodeLayout,
    Occupant,
    SharedInterval,
)

NAMES = [PACKAGE, "gpu:0", "gpu:1"]
POWER_W = {PACKAGE: 100.0, "gpu:0": 300.0, "gpu:1": 50.0}


class Curves:
    """Domains of constant power; some are silent at some times."""

    def __init__(self) -> None:
        self.taken_s = dict.fromkeys(NAMES, 0.0)
        self.silent: set[str] = set()

    def take(self, name: str, until_s: float) -> float:
        energy_j = POWER_W[name] * (until_s - self.taken_s[name])
        self.taken_s[name] = until_s
        return energy_j

    def readable(self, name: str, until_s: float) -> bool:
        return name not in self.silent


def ledger() -> EnergyLedger:
    layout = NodeLayout({name: PARTS[name] for name in NAMES}, 8)
    return EnergyLedger(layout, dict.fromkeys(NAMES, 0.0))


def total_j(accounts: list[Account], name: str) -> float:
    return sum(account.energy_j.get(name, 0.0) for account in accounts)


def test_what_a_silent_sensor_counted_goes_to_those_who_were_there() -> None:
    """A card falls silent for 3 s in which one job follows another; then its counter is back."""
    book, curves = ledger(), Curves()
    first, second = book.open("first"), book.open("second")
    curves.silent = {"gpu:0"}
    gpu = frozenset({"gpu:0"})
    book.extend(
        [
            SharedInterval(0, 1, (Occupant("first", gpu),)),
            SharedInterval(1, 3, (Occupant("second", gpu),)),
        ]
    )
    book.attribute(curves.take, curves.readable, {})
    assert not book.is_complete(["gpu:0"], 1.0)
    assert book.is_complete(["gpu:1"], 3.0)
    curves.silent = set()
    book.attribute(curves.take, curves.readable, {})
    assert first.energy_j["gpu:0"] == pytest.approx(300)
    assert second.energy_j["gpu:0"] == pytest.approx(600)


def test_what_comes_after_a_run_was_closed_is_nobodys() -> None:
    """Its journal has its end; the node still adds up."""
    book, curves = ledger(), Curves()
    book.open("gone")
    curves.silent = {"gpu:0"}
    book.extend([SharedInterval(0, 1, (Occupant("gone", frozenset({"gpu:0"})),))])
    book.attribute(curves.take, curves.readable, {})
    book.close("gone")
    curves.silent = set()
    book.attribute(curves.take, curves.readable, {})
    assert book.accounts[UNATTRIBUTED].energy_j["gpu:0"] == pytest.approx(300)


def test_an_account_survives_its_state() -> None:
    """A restarted agent reads the state as it was written."""
    book, curves = ledger(), Curves()
    account = book.open("a")
    book.extend([SharedInterval(0, 2, (Occupant("a", frozenset({"gpu:1"}), 4, cpu_s=1.0),), 2.0)])
    book.attribute(curves.take, curves.readable, {PACKAGE: 50.0})
    assert Account.from_state(account.to_state()) == account


steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "silent", "back", "time"]),
        st.integers(0, 3),
        st.floats(1e-8, 1e-3) | st.floats(0.01, 400.0),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=50, deadline=None)
@given(steps=steps)
def test_accounts_add_up_to_the_node_whatever_happens(steps: list[Any]) -> None:
    """Jobs come and go, on cards of their own and shared ones, and are closed at once or later;
    sensors fall silent for minutes and come back: within 1e-6, and no job has less than nothing.
    """
    book, curves = ledger(), Curves()
    open_runs: dict[int, Occupant] = {}
    ended: list[str] = []
    closed: list[Account] = []
    now_s = 0.0
    for number, (what, which, length_s, settled) in enumerate(steps):
        if what == "begin" and which not in open_runs:
            run = f"{which}-{number}"
            gpu = f"gpu:{which % 2}"
            use = {gpu: 0.1 * number} if settled or which < 2 else {}
            open_runs[which] = Occupant(run, frozenset({gpu}), 2, cpu_s=length_s / 2, gpu_use=use)
            book.open(run)
        elif what == "end" and which in open_runs:
            ended.append(open_runs.pop(which).run)
            while settled and ended:
                closed.append(book.close(ended.pop()))
        elif what == "silent":
            curves.silent.add(NAMES[which % 3])
        elif what == "back":
            curves.silent.discard(NAMES[which % 3])
        book.extend([SharedInterval(now_s, now_s + length_s, tuple(open_runs.values()), length_s)])
        now_s += length_s
        if settled:
            book.attribute(curves.take, curves.readable, {PACKAGE: 30.0})
    curves.silent = set()
    book.extend([SharedInterval(now_s, now_s + 1.0, (), None)])
    book.attribute(curves.take, curves.readable, {PACKAGE: 30.0})
    runs = [account for run, account in book.accounts.items() if run != UNATTRIBUTED]
    assert all(j >= -1e-6 for one in (*closed, *runs) for j in one.energy_j.values())
    for name in NAMES:
        whole_j = POWER_W[name] * (now_s + 1.0)
        assert total_j([*closed, *book.accounts.values()], name) == pytest.approx(whole_j, rel=1e-6)
