"""Promises of benchmarks/fleet_kills.py: it finds lost jobs, jobs run twice, lost joules and
caps.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import fleet_kills
from wattloop.core.clock import RealClock
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.store.database import open_store
from wattloop.store.runs import RunRecord, insert_run
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.node import shared_gpus


class FakeFleet:
    """The store, the cards and the folders of a fleet, without its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "said").mkdir()
        (folder / "levers").mkdir()
        self.postgres = SimpleNamespace(url=str(folder / "runs.db"))
        self.lab = SimpleNamespace(
            run=lambda *words, check=True: "", job_state=lambda job: "COMPLETED"
        )

    def cards(self, node: str) -> list[VirtualGpu]:
        environment = {"WATTLOOP_VIRTUAL_STATE": str(self.folder / f"{node}.state")}
        return shared_gpus(fleet_kills.GPUS, RealClock(), environment)

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        return done()


@pytest.fixture
def fleet(tmp_path: Path) -> FakeFleet:
    return FakeFleet(tmp_path)


def test_jobs_are_judged_by_their_own_output(fleet: FakeFleet) -> None:
    """One output is right; none is a lost job, though Slurm says COMPLETED; two are a job run
    twice.
    """
    trial = fleet_kills.Trial(0, 1, jobs={"good": 1, "lost": 2, "cut": 3, "twice": 4})
    (fleet.folder / "said/good").write_text("begin 1 0\ndone 1 1\n")
    (fleet.folder / "said/cut").write_text("begin 3 0\n")
    (fleet.folder / "said/twice").write_text("begin 4 0\ndone 4 1\nbegin 4 2\ndone 4 3\n")
    fleet_kills.check_jobs(trial, fleet)  # type: ignore[arg-type]  # as much of a fleet as it needs
    assert [text.split()[1] for text in trial.lost] == ["lost", "cut"]
    assert [text.split()[1] for text in trial.twice] == ["twice"]


def test_caps_and_journals_that_stay_are_found(fleet: FakeFleet) -> None:
    """A card below its default limit and an unrestored journal are both found."""
    trial = fleet_kills.Trial(0, 1)
    fleet_kills.check_caps(trial, fleet)  # type: ignore[arg-type]  # as above
    assert trial.caps == []
    fleet.cards("n1")[2].set_power_cap(300.0)
    (fleet.folder / "levers/7.journal").touch()
    fleet_kills.check_caps(trial, fleet)  # type: ignore[arg-type]  # as above
    assert trial.caps == ["n1 gpu:2 is still at 300 W", "journal 7.journal is left"]


@pytest.mark.parametrize(("off_j", "found"), [(0.0, 0), (200.0, 1), (-200.0, 1)])
def test_joules_are_compared_with_the_cards_own_books(
    fleet: FakeFleet, off_j: float, found: int
) -> None:
    """A missing run, or one counted twice, is more than 5 J and 0.1% of the card's energy."""
    now_s = time.monotonic()
    after_s = now_s + 600  # runs cover more than the time that this test may take
    with open_store(fleet.postgres.url) as store:
        for node in fleet_kills.NODES:
            for number, (begin_s, end_s) in enumerate(((now_s - 50, now_s), (now_s, after_s))):
                energies = [
                    (card.index, card.true_energy_j(begin_s, end_s)) for card in fleet.cards(node)
                ]
                if node == "n2" and number == 0:
                    energies[1] = (1, energies[1][1] + off_j)
                insert_run(store, unallocated(node, number, begin_s, end_s, dict(energies)))
    trial = fleet_kills.Trial(0, 1)
    fleet_kills.check_joules(trial, fleet)  # type: ignore[arg-type]  # as above
    assert len(trial.joules) == found, trial.joules
    assert trial.worst_j == pytest.approx(abs(off_j), abs=0.01)


def unallocated(
    node: str, number: int, begin_s: float, end_s: float, energies_j: dict[int, float]
) -> RunRecord:
    domains = tuple(
        DomainEnergy(
            name=f"gpu:{index}",
            scope=Scope.GPU,
            energy_j=energy_j,
            uncertainty_j=0.0,
            provenance=Provenance.SIMULATED,
            source="virtual",
        )
        for index, energy_j in energies_j.items()
    )
    result = WindowResult(
        name="unallocated",
        window_id=0,
        parent_id=None,
        begin_s=begin_s,
        end_s=end_s,
        domains=domains,
    )
    return RunRecord(
        run_id=f"20260101-00000{number}-{node}",
        kind="unallocated",
        host=node,
        started_s=begin_s,
        result=result,
    )
