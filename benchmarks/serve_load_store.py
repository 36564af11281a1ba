"""A store with 10,000 runs and 50 million samples, for the benchmark of the dashboard.

Some runs are made through the real path (a journal, imported into the store with its accounting);
the others are copies of them under other names, clusters and dates. One of them lasts a day.
"""

import math
import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

from tune_stores import fill, many_trials_spec
from wattloop.core.results import RunStatus
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store, open_store
from wattloop.store.journal import HEADER, json_frame, samples_frame
from wattloop.store.journal_import import ImportStatus, import_journal
from wattloop.store.runs import RunRecord, find_run, insert_run_in
from wattloop.store.schema import sample_chunks, sample_levels

__all__ = ["DAY_RUN", "DOMAINS", "filled", "header", "search_of"]

DOMAINS = ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
DAY_RUN = "20260101-000000-day000"
DAY_SAMPLES = 864_000
TEMPLATES = 40
AT_ONCE = 250
TRIALS = 2_000
BEGUN_WALL_S = time.time() - 36 * 86_400
"""The overview sums up two months: all runs are in them."""


def filled(path: Path, runs: int, samples: int) -> None:
    """Make the store, unless it is there with as many runs; `samples` over all runs and domains."""
    done = path.with_name(f"{path.name}.done")
    wanted = f"{runs} {samples} {TRIALS} of {time.strftime('%Y-%m')}"
    if done.exists() and done.read_text() == wanted:
        return
    for old in path.parent.glob(f"{path.name}*"):
        if old.is_file():
            old.unlink()
    with open_store(path) as store:
        each = max(10, (samples - DAY_SAMPLES * len(DOMAINS)) // (runs - 1) // len(DOMAINS))
        _made(store, DAY_RUN, DAY_SAMPLES, 0)
        originals = [_made(store, _name(n), each, n) for n in range(1, TEMPLATES + 1)]
        for begin in range(TEMPLATES + 1, runs, AT_ONCE):
            _copies(store, originals, range(begin, min(begin + AT_ONCE, runs)))
        fill(store, many_trials_spec(), TRIALS)
    done.write_text(wanted)


def search_of(path: Path) -> str:
    """Return the identifier of its search."""
    from wattloop.store.experiments import list_experiments

    with open_store(path) as store:
        return list_experiments(store, "search")[0].experiment_id


def header(run_id: str, host: str, started_wall_s: float, tags: dict[str, str]) -> bytes:
    """Return the first frame of a run's journal: four GPUs."""
    return json_frame(
        HEADER,
        {
            **{"run_id": run_id, "name": f"train-{run_id[-4:]}", "kind": "command", "host": host},
            **{"started_wall_s": started_wall_s, "started_s": 0.0, "tags": tags, "format": 1},
            "command": ["python", "train.py", "--seed", run_id[-4:]],
            "settings": {"carbon_g_per_kwh": 369.0, "pue": 1.3},
            "feeds": [{"meter": "nvml", "domains": [_domain(n) for n in DOMAINS], "signals": []}],
        },
    )


def _domain(name: str) -> dict[str, Any]:
    return {
        **{"name": name, "kind": "gauge", "scope": "gpu", "source": "NVML", "device": "H200"},
        **{"provenance": "measured", "inside": None, "resolution": 1.0, "update_period_s": 0.1},
        "tdp_w": 700.0,
    }


def _made(store: Store, run_id: str, samples: int, seed: int) -> RunRecord:
    """Make one run the way all runs come into a store."""
    draw = random.Random(seed)
    path = store.journals / f"{run_id}.journal"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(header(run_id, f"node{seed % 40:02}", BEGUN_WALL_S + 60 * seed, _tags(seed)))
        for begin in range(0, samples, 600):
            count = min(600, samples - begin)
            times_s = array("d", [(begin + n) / 10 for n in range(count)])
            values = array("d", _power(draw, begin, count))
            file.write(samples_frame(0, len(DOMAINS), times_s, values))
    folded = import_journal(store, path, finalize_orphaned_run)
    assert folded.outcome is ImportStatus.IMPORTED, folded
    return find_run(store, run_id)


def _power(draw: random.Random, begin: int, count: int) -> Iterator[float]:
    """Return the steps of a training with noise, each GPU at its own level."""
    for n in range(begin, begin + count):
        base_w = 420.0 + 180.0 * math.sin(n / 400) + (120.0 if n // 30 % 2 else 0.0)
        for gpu in range(len(DOMAINS)):
            yield round(base_w * (1 - 0.07 * gpu) + draw.gauss(0, 6), 3)


def _tags(number: int) -> dict[str, str]:
    return {
        **{"cluster": f"cluster-{number % 3}", "partition": ("gpu", "long", "debug")[number % 3]},
        "project": f"project-{number % 17:02}",
    }


def _copies(store: Store, originals: list[RunRecord], numbers: range) -> None:
    with store.writing() as connection:
        for original_at, original in enumerate(originals):
            own = [n for n in numbers if n % len(originals) == original_at]
            for n in own:
                insert_run_in(connection, _copy(original, n))
            for table in (sample_chunks, sample_levels):
                query = select(table).where(table.c.run_id == original.run_id)
                rows = [dict(row._mapping) for row in connection.execute(query)]
                copies = [{**row, "run_id": _name(n)} for n in own for row in rows]
                if copies:
                    connection.execute(insert(table), copies)


def _copy(original: RunRecord, number: int) -> RunRecord:
    """Copy a run to another time and another user."""
    assert original.result is not None
    scale = 0.5 + (number * 37 % 100) / 100
    domains = tuple(
        d._replace(energy_j=None if d.energy_j is None else d.energy_j * scale)
        for d in original.result.domains
    )
    return replace(
        original,
        run_id=_name(number),
        name=f"train-{number:05}",
        status=RunStatus.FINISHED if number % 20 else RunStatus.DIED,
        host=f"node{number % 40:02}",
        started_wall_s=BEGUN_WALL_S + 300.0 * number,
        tags=_tags(number),
        result=original.result._replace(domains=domains),
    )


def _name(number: int) -> str:
    return f"20260101-{number:06}-{number:06x}"
