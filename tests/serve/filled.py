"""A store with something of everything: a run with windows and signals, an unfinished one, a sweep,
a search, a campaign and a study."""

import math
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tune_stores import fill, many_trials_spec

from tests.schedule.campaigns.worlds import campaign, tiny
from tests.store.test_job_queries import record
from tests.support.synthetic_sweep import made_sweep
from wattloop.core.results import WindowResult
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.schedule.campaigns.runner import run_campaign
from wattloop.store.database import Store, open_store
from wattloop.store.experiments import begin_trial, create_experiment, end_trial
from wattloop.store.journal import JournalWriter
from wattloop.store.journal_import import ImportStatus, import_journal
from wattloop.store.runs import insert_run
from wattloop.store.samples import SIGNALS_FROM
from wattloop.study.record import StudyRecord
from wattloop.study.spec import StudySpec

__all__ = ["LONG", "NASTY", "RUN", "Filled", "filled"]

RUN, LIVE = "20260102-000000-aaaaaa", "20260103-000000-bbbbbb"
NASTY = "<script>alert(1)</script>'; drop table runs; --"
LONG = "a name of many words " * 9 + "unbroken_" * 12
SAMPLES = 600


@dataclass(frozen=True)
class Filled:
    """The location of the store, and its contents."""

    path: Path
    sweep: str
    search: str
    campaign: str
    study: str
    live: JournalWriter

    @property
    def pages(self) -> dict[str, str]:
        """Return the name of each page with its address."""
        return {
            "overview": "/",
            "jobs": "/jobs",
            "nodes": "/nodes",
            "run": f"/runs/{RUN}",
            "live": f"/runs/{LIVE}",
            "compare": f"/compare?run={RUN}&run=2026-002",
            "sweeps": "/sweeps",
            "sweep": f"/sweeps/{self.sweep}",
            "searches": "/searches",
            "search": f"/searches/{self.search}",
            "clusters": f"/searches/{self.search}/clusters?dimensions=3",
            "predict": "/predict",
            "campaigns": "/simulate",
            "campaign": f"/simulate/{self.campaign}",
            "over-time": f"/simulate/{self.campaign}/over-time",
            "studies": "/study",
            "study": f"/study/{self.study}",
            "api": "/api",
            "missing": "/runs/none",
        }


@contextmanager
def filled(folder: Path, place: str = "") -> Iterator[Filled]:
    """Fill the store, in the folder or at another location; one run stays unfinished inside the
    block.
    """
    path = folder / "runs.db"
    with open_store(place or path) as store:
        insert_run(store, record(1))
        insert_run(store, record(2, name=NASTY, tags={"project": NASTY}, command=[NASTY]))
        insert_run(store, record(3, result=None, accounting=None))
        for number in range(4, 30):
            said = [{"code": "low_efficiency", "severity": "warning", "text": "low"}]
            accounting = {"labels": {"node": "low"}, "insights": said}
            name = LONG if number == 29 else f"train-{number}"
            insert_run(store, record(number, name=name, accounting=accounting))
        _run(store)
        experiment, trials = made_sweep()
        create_experiment(store, experiment)
        for trial in trials:
            begin_trial(store, experiment.experiment_id, trial.key, trial.settings)
            end_trial(store, experiment.experiment_id, trial)
        search = fill(store, many_trials_spec(), 30)
        simulated, _ = run_campaign(campaign(tiny(folder)), store)
        study = StudyRecord(store, StudySpec.model_validate(STUDY))
        study.keep("characterize", {"best": [], "note": "no sweep was named"})
        live = JournalWriter(store.journals / f"{LIVE}.journal", _header(LIVE, "goes on"))
        more_power(live, 0, 50)
        live.sync()
        yield Filled(
            path,
            experiment.experiment_id,
            search,
            simulated.experiment_id,
            study.experiment.experiment_id,
            live,
        )
        live.end({"type": "end", "time_s": 5.0, "wall_s": 1e9 + 5, "status": "finished"})
        live.close()


STUDY: dict[str, Any] = {
    "name": "greener",
    "need": "Less energy.",
    "kpis": [{"metric": "energy_kwh", "goal": "-10%"}],
    "baseline": {"scenario": "thesis-pareto", "policy": "pollux", "seeds": 2},
    "candidates": ["zeus"],
}


def _header(run_id: str, name: str) -> dict[str, Any]:
    domains = [
        {
            **{"name": f"gpu:{n}", "kind": "gauge", "scope": "gpu", "source": "NVML"},
            **{"provenance": "measured", "inside": None, "resolution": 1.0, "device": "H200"},
            **{"update_period_s": 0.1, "tdp_w": 700.0},
        }
        for n in range(2)
    ]
    signals = [{"name": "gpu:0/utilisation", "unit": "fraction"}]
    return {
        **{"run_id": run_id, "name": name, "kind": "command", "host": "node1"},
        **{"started_wall_s": 1.767e9, "started_s": 0.0, "command": ["python", "train.py"]},
        **{"settings": {}, "tags": {"cluster": "lab", "project": "vision"}},
        "feeds": [{"meter": "nvml", "domains": domains, "signals": signals}],
    }


def more_power(journal: JournalWriter, begin: int, end: int) -> None:
    times_s = array("d", [n / 10 for n in range(begin, end)])
    values = array("d")
    for time_s in times_s:
        values.extend((500 + 100 * math.sin(time_s / 3), 300 + 50 * math.cos(time_s / 5)))
    journal.samples(0, 2, times_s, values)
    busy = array("d", [0.5 + 0.4 * math.sin(time_s) for time_s in times_s])
    journal.samples(SIGNALS_FROM, 1, times_s, busy)


def _run(store: Store) -> None:
    path = store.journals / f"{RUN}.journal"
    journal = JournalWriter(path, _header(RUN, "training"))
    more_power(journal, 0, SAMPLES)
    for number, name in enumerate(("load", "train")):
        begin_s = 30.0 * number
        window = WindowResult(name, number + 1, 0, begin_s, begin_s + 28)
        journal.event({"type": "window", "window": window.to_dict()})
    journal.close()
    assert import_journal(store, path, finalize_orphaned_run).outcome is ImportStatus.IMPORTED
