"""Promises of a node's disk: no more than was allowed, and energies go last."""

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")

from tests.fleet.delivery.served import NODE, begin, served, whole
from wattloop.fleet.delivery import deliver
from wattloop.fleet.delivery.outbox import DroppedJournals, Outbox, make_room
from wattloop.store.ingest.received_run import RunSource
from wattloop.store.runs import find_run
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import find_series

RUNS = [f"2026010{n}-000000-aaaaaa" for n in range(1, 4)]


def aged(folder: Path) -> Outbox:
    """Set the file's last write to an hour ago."""
    for path in folder.glob("*.journal"):
        os.utime(path, (time.time() - 3_600,) * 2)
    return Outbox(folder)


def used_b(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_refused_ones_go_first_then_samples_then_runs(tmp_path: Path) -> None:
    """The oldest first; what grows is never touched."""
    for run_id in RUNS[:2]:
        whole(tmp_path, run_id, samples=200)
    outbox = aged(tmp_path)
    grows = begin(tmp_path, RUNS[2], samples=200)
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "old.journal").write_bytes(b"x" * 5_000)
    assert make_room(outbox, used_b(tmp_path)) == DroppedJournals()
    assert make_room(outbox, used_b(tmp_path) - 100) == DroppedJournals(refused=1)
    assert make_room(outbox, used_b(tmp_path) - 100) == DroppedJournals(thinned=1)
    assert sorted(p.name for p in tmp_path.glob("2026*")) == [
        f"{RUNS[0]}.thinned",
        f"{RUNS[1]}.journal",
        f"{RUNS[2]}.journal",
    ]
    thinned_b = (tmp_path / f"{RUNS[0]}.thinned").stat().st_size
    limit_b = (tmp_path / f"{RUNS[2]}.journal").stat().st_size + 3 * thinned_b // 2
    assert make_room(outbox, limit_b) == DroppedJournals(thinned=1, lost=1)
    assert make_room(outbox, 0) == DroppedJournals(lost=1)
    assert [p.name for p in tmp_path.glob("2026*")] == [f"{RUNS[2]}.journal"]
    grows.close()


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_run_that_lost_its_samples_keeps_its_energy(tmp_path: Path, is_ended: bool) -> None:
    """Also when half of it was sent before, and when its writer had died: it is worked out then."""
    with served(tmp_path) as site:
        if is_ended:
            whole(site.outbox, RUNS[0], samples=1_001, seconds=1_000.0, energy_j=1e5)
        else:
            begin(site.outbox, RUNS[0], samples=1_001).close()
        data = (site.outbox / f"{RUNS[0]}.journal").read_bytes()
        site.state.ingest.append(RUNS[0], 0, data[:1_500], RunSource(NODE))
        aged(site.outbox)
        assert make_room(Outbox(site.outbox), len(data) - 1) == DroppedJournals(thinned=1)
        deliver(site.options(), once=True)
        record = find_run(site.state.store, RUNS[0])
        assert record.energy_j == pytest.approx(1e5)
        series = find_series(record.feeds, "gpu:0")
        assert len(read_samples(site.state.store, RUNS[0], series)[0]) == 0
    assert not list(site.outbox.glob("2026*"))
