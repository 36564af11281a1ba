"""The results of one benchmark as plain data, and as an experiment in the store."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wattloop.bench.idle import IdleByThreads
from wattloop.bench.plan import BenchPlan
from wattloop.bench.result import KernelResult
from wattloop.bench.roofline import roofline, to_dict
from wattloop.bench.speedups import speedups, threads_stop_paying
from wattloop.core.errors import ConfigError, StoreError
from wattloop.core.records import from_plain
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    begin_trial,
    create_experiment,
    end_trial,
    find_experiment,
    new_experiment_id,
    read_trials,
    set_experiment_status,
)

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """Results with what is needed to understand them."""

    results: Sequence[KernelResult]
    left_out: Sequence[Mapping[str, str]] = ()
    idle: Mapping[str, Any] = field(default_factory=dict)
    idle_by_threads: Sequence[IdleByThreads] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    missing: Sequence[Mapping[str, str]] = ()
    warnings: Sequence[str] = ()
    experiment_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        peaks, points = roofline(self.results)
        shares = {id(p.result): p for p in points}
        return {
            "version": VERSION,
            "experiment_id": self.experiment_id,
            "machine": dict(self.machine),
            "results": [
                {
                    **r.to_dict(),
                    "attainable_gflops": shares[id(r)].attainable_gflops if r.ok else None,
                    "roofline_share": shares[id(r)].share if r.ok else None,
                    "bound": shares[id(r)].bound if r.ok else "",
                }
                for r in self.results
            ],
            "peaks": [to_dict(p) for p in peaks],
            "speedups": [
                {
                    "key": s.result.key,
                    "reference": s.reference.key,
                    "time": s.time,
                    "energy": s.energy,
                    "application_energy": s.application,
                    "dram_energy": s.dram,
                }
                for s in speedups(self.results)
            ],
            "threads_stop_paying": [
                {**s._asdict(), "text": s.text} for s in threads_stop_paying(self.results)
            ],
            "idle": dict(self.idle),
            "idle_by_threads": [row._asdict() for row in self.idle_by_threads],
            "left_out": [dict(item) for item in self.left_out],
            "missing": [dict(item) for item in self.missing],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BenchRecord":
        """Convert back from `to_dict`; derived values are computed again. Raises ConfigError."""
        version = data.get("version")
        if not isinstance(version, int) or "results" not in data:
            raise ConfigError("this is not what 'wattloop bench --json' writes")
        if version > VERSION:
            raise ConfigError(f"written by a newer wattloop (format {version}); upgrade")
        try:
            return from_plain(cls, data)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this bench file is damaged ({error}); run it again") from None


KIND = "bench"


class BenchRecorder:
    """Writes results of one session; a store that fails costs a warning, never a result."""

    def __init__(self, store: Store, plan: BenchPlan, wall_s: float) -> None:
        self.experiment_id: str | None = new_experiment_id(KIND, wall_s)
        self.warnings: list[str] = []
        self._store = store
        experiment = Experiment(
            experiment_id=self.experiment_id,
            kind=KIND,
            name=f"{','.join(plan.choice.kernels)} on {plan.choice.device}",
            created_wall_s=wall_s,
            spec=asdict(plan.choice),
        )
        self._try(lambda: create_experiment(store, experiment))

    def add(self, result: KernelResult) -> None:
        experiment_id = self.experiment_id
        if experiment_id is None:
            return
        settings = {
            name: getattr(result, name)
            for name in ("kernel", "size", "dtype", "backend", "style", "threads", "device")
        }

        def write() -> None:
            record = begin_trial(self._store, experiment_id, result.key, settings)
            done = replace(
                record, status=result.status, outcome=result.to_dict(), run_id=result.run_id
            )
            end_trial(self._store, experiment_id, done)

        self._try(write)

    def end(self, status: str, record: BenchRecord | None = None) -> None:
        experiment_id = self.experiment_id
        if experiment_id is None:
            return
        facts: Mapping[str, Any] = {}
        if record is not None:
            whole = record.to_dict()
            facts = {name: whole[name] for name in FACTS}
        self._try(lambda: set_experiment_status(self._store, experiment_id, status, facts))

    def _try(self, write: Any) -> None:
        try:
            write()
        except StoreError as error:
            self.experiment_id = None
            self.warnings.append(f"results are not kept: {error}")


FACTS = ("idle", "idle_by_threads", "left_out", "machine", "missing", "warnings", "version")


def stored_record(store: Store, reference: str) -> BenchRecord:
    """Return the stored results of an earlier session; `last` is the newest."""
    experiment = find_experiment(store, reference, KIND)
    trials = read_trials(store, experiment.experiment_id)
    return BenchRecord.from_dict(
        {
            "version": 1,
            **experiment.facts,
            "results": [trial.outcome for trial in trials if trial.ended],
            "experiment_id": experiment.experiment_id,
        }
    )
