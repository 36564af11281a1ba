"""Savings of many runs: sums with intervals, in energy, money and CO2e, and the evidence of each.

Each run compares itself with its own slices at the reference, so the errors of different jobs are
independent and their half-widths add as squares. Runs of one job (its nodes) share the reference
of the job: their half-widths add up. What a model expects of runs in which nothing was set has
errors in common: those half-widths add up as well. An error of the GPUs' sensors scales all
figures and is not in the intervals.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from wattloop.accounting.carbon import carbon_g
from wattloop.accounting.restatement import restated
from wattloop.accounting.summary import cost_of
from wattloop.cap.finder import GainInterval
from wattloop.cap.saver.proof import REFERENCE, SavingResult, SavingState
from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope
from wattloop.core.settings import Settings
from wattloop.core.units import J_PER_WH, energy_unit
from wattloop.store.database import Store
from wattloop.store.run_record import RunRecord, job_key_of
from wattloop.store.runs import RunFilter, list_runs

GROUPS = ("user", "job", "project", "gpu")
KWH_PER_J = 1 / (1_000 * J_PER_WH)
LARGEST = 1e18
"""Larger numbers in a journal are not joules, seconds or percent."""


@dataclass(frozen=True, slots=True)
class RunSaving:
    """What one run saved or could have saved, and how that is known.

    Attributes:
        setting: power cap and clock that were chosen last; `as found` where none was.
        used_j: energy of the GPUs in the steps that were compared.
        saved_j: GPU energy, with a 90% interval; None where nothing was compared.
        expected_j: what a model expects to be saved, of a run in which nothing was set.
        rest_j: energy of the rest of the node in the longer time, estimated; not subtracted.
        factor: grid energy per joule of a GPU: the PUE.
        cost: saved money and its currency; None without a tariff.
        carbon_g: saved grams of CO2e; None without a carbon intensity.
    """

    run_id: str
    name: str
    user: str
    job: str
    project: str
    gpu: str
    host: str
    started_wall_s: float
    state: SavingState
    reason: str
    setting: str
    reference_slices: int
    saving_slices: int
    pairs: int
    train_s: float
    used_j: float
    saved_j: GainInterval | None
    saved_pct: GainInterval | None
    slowdown_pct: GainInterval | None
    expected_j: GainInterval | None
    rest_j: float | None
    factor: float
    cost: GainInterval | None
    currency: str
    carbon_g: GainInterval | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"state": self.state.value}


@dataclass(frozen=True, slots=True)
class SavingsSum:
    """Sum over runs, with 90% intervals.

    Attributes:
        runs: all of them; `compared` have a saving, `observed` only an expectation.
        saved_pct: of the energy that the compared runs would have used.
        slowdown_pct: time of the compared steps, more than at the reference.
        cost: saved money by currency; amounts of different currencies are not added.
        with_cost, with_carbon: compared runs with a tariff, with a carbon intensity.
    """

    runs: int = 0
    compared: int = 0
    observed: int = 0
    left_alone: int = 0
    used_j: float = 0.0
    saved_j: GainInterval | None = None
    saved_pct: GainInterval | None = None
    slowdown_pct: GainInterval | None = None
    expected_j: GainInterval | None = None
    rest_j: float | None = None
    cost: dict[str, GainInterval] = field(default_factory=dict)
    with_cost: int = 0
    carbon_g: GainInterval | None = None
    with_carbon: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with kilowatt-hours next to joules."""
        data = asdict(self)
        for name in ("saved", "expected"):
            found: GainInterval | None = getattr(self, f"{name}_j")
            data[f"{name}_kwh"] = None if found is None else asdict(scaled(found, KWH_PER_J))
        return data


def read_savings(
    store: Store, settings: Settings, since_wall_s: float | None = None
) -> list[RunSaving]:
    """Return the runs with a saver, newest first.

    Quarantined runs are left out, and runs inside of a run that has the same saving.
    """
    wanted = RunFilter(since_wall_s=since_wall_s, saving=True)
    records = [r for r in list_runs(store, wanted) if r.saving and r.quarantine is None]
    known = {record.run_id for record in records}
    found = [
        run_saving(restated(record, settings))
        for record in records
        if record.parent_run_id not in known
    ]
    return [each for each in found if each is not None]


def run_saving(record: RunRecord) -> RunSaving | None:
    """Return the saving of a run; None for one without a saver, or an unreadable record of it."""
    try:
        result = None if record.saving is None else SavingResult.from_dict(record.saving)
    except (ConfigError, TypeError, ValueError):  # journals of other machines may hold anything
        return None
    if result is None or not _is_sound(result):
        return None
    accounting = record.accounting or {}
    facility = accounting.get("facility") or {}
    factor = _positive(facility.get("pue")) or 1.0
    tariff = accounting.get("cost") or {}
    price = _positive(tariff.get("tariff_per_kwh"))
    grams = _positive((accounting.get("carbon_intensity") or {}).get("g_co2e_per_kwh"))
    saved_j = result.saved_j
    return RunSaving(
        run_id=record.run_id,
        name=record.name,
        user=record.user,
        job=job_key_of(record),
        project=_project(record),
        gpu=_gpu(record),
        host=record.host,
        started_wall_s=record.started_wall_s,
        state=result.state,
        reason=result.reason,
        setting=str(result.periods[-1].setting if result.periods else REFERENCE),
        reference_slices=result.reference_slices,
        saving_slices=result.saving_slices,
        pairs=result.pairs,
        train_s=result.train_s,
        used_j=result.train_j,
        saved_j=saved_j,
        saved_pct=result.saved_pct,
        slowdown_pct=result.slowdown_pct,
        expected_j=_expected_j(result),
        rest_j=_rest_j(record, result),
        factor=factor,
        cost=_mapped(saved_j, price, lambda j: cost_of(factor * j, price or 0.0, "").amount),
        currency=str(tariff.get("currency") or "") if price is not None else "",
        carbon_g=_mapped(saved_j, grams, lambda j: carbon_g(factor * j, grams or 0.0)),
    )


def sum_savings(runs: Sequence[RunSaving]) -> SavingsSum:
    """Add savings up; see the module for the interval."""
    compared = [run for run in runs if run.saved_j is not None]
    used_j = sum(run.used_j for run in compared)
    saved_j = _sum(compared, lambda run: run.saved_j)
    priced = [run for run in compared if run.cost is not None]
    currencies = sorted({run.currency for run in priced})
    costs = {
        currency: _sum([r for r in priced if r.currency == currency], lambda run: run.cost)
        for currency in currencies
    }
    with_carbon = [run for run in compared if run.carbon_g is not None]
    rests_j = [run.rest_j for run in compared if run.rest_j is not None]
    observed = [run for run in runs if run.state is SavingState.OBSERVED]
    return SavingsSum(
        runs=len(runs),
        compared=len(compared),
        observed=len(observed),
        left_alone=sum(run.state is SavingState.LEFT for run in runs),
        used_j=used_j,
        saved_j=saved_j,
        saved_pct=None if saved_j is None else _mapped(saved_j, used_j, _share_of(used_j)),
        slowdown_pct=_slowdown_pct(compared),
        expected_j=_sum(observed, lambda run: run.expected_j, independent=False),
        rest_j=sum(rests_j) if rests_j else None,
        cost={currency: cost for currency, cost in costs.items() if cost is not None},
        with_cost=len(priced),
        carbon_g=_sum(with_carbon, lambda run: run.carbon_g),
        with_carbon=len(with_carbon),
    )


def group_savings(runs: Sequence[RunSaving], by: str) -> dict[str, SavingsSum]:
    """Return the sum of each user, job, project or kind of GPU, the largest saving first."""
    members: dict[str, list[RunSaving]] = {}
    for run in runs:
        members.setdefault(getattr(run, by) or "unknown", []).append(run)
    sums = {name: sum_savings(group) for name, group in members.items()}
    return dict(sorted(sums.items(), key=lambda item: -_value(item[1].saved_j)))


def format_saved(joules: GainInterval) -> str:
    """Return an energy with its interval, in the unit of the largest of the three."""
    unit, scale_j = energy_unit(max(map(abs, asdict(joules).values())))
    return f"{format_interval(scaled(joules, 1 / scale_j))} {unit}"


def format_interval(interval: GainInterval) -> str:
    """Return a value with its bounds, to three digits of the largest."""
    largest = max(abs(interval.value), abs(interval.low), abs(interval.high))
    digits = max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0
    value, low, high = (f"{x:.{digits}f}" for x in asdict(interval).values())
    return f"{value} ({low} to {high})"


def scaled(interval: GainInterval, factor: float) -> GainInterval:
    return GainInterval(interval.value * factor, interval.low * factor, interval.high * factor)


def _sum(
    runs: Iterable[RunSaving],
    of: Callable[[RunSaving], GainInterval | None],
    *,
    independent: bool = True,
) -> GainInterval | None:
    """Add intervals: half-widths within a job, squares of half-widths between jobs."""
    value = 0.0
    widths: dict[str, tuple[float, float]] = {}
    for run in runs:
        interval = of(run)
        if interval is None:
            continue
        value += interval.value
        key = run.job if independent else ""
        below, above = widths.get(key, (0.0, 0.0))
        widths[key] = below + interval.value - interval.low, above + interval.high - interval.value
    if not widths:
        return None
    below = math.hypot(*(width for width, _ in widths.values()))
    above = math.hypot(*(width for _, width in widths.values()))
    return GainInterval(value, value - below, value + above)


def _slowdown_pct(compared: Sequence[RunSaving]) -> GainInterval | None:
    """Return the time lost by all runs over the time that they would have taken."""
    train_s = sum(run.train_s for run in compared if run.slowdown_pct is not None)
    lost_s = _sum(compared, _lost_s)
    if lost_s is None:
        return None
    return _mapped(lost_s, train_s, lambda s: 100 * s / max(train_s - s, 1e-9))


def _lost_s(run: RunSaving) -> GainInterval | None:
    # x% slower than the reference: x / (100 + x) of the time is lost
    return _mapped(run.slowdown_pct, run.train_s, lambda x: run.train_s * x / max(100 + x, 1.0))


def _share_of(used_j: float) -> Callable[[float], float]:
    return lambda saved_j: 100 * saved_j / max(used_j + saved_j, 1e-9)


def _mapped(
    interval: GainInterval | None, known: float | None, change: Callable[[float], float]
) -> GainInterval | None:
    """Return a rising function of an interval; None where it, or what it needs, is not known."""
    if interval is None or not known:
        return None
    return GainInterval(change(interval.value), change(interval.low), change(interval.high))


def _expected_j(result: SavingResult) -> GainInterval | None:
    if result.state is not SavingState.OBSERVED or result.expected_pct is None:
        return None
    return scaled(result.expected_pct, result.train_j / 100)


def _rest_j(record: RunRecord, result: SavingResult) -> float | None:
    """Return the energy of the rest of the node in the time by which the run became longer."""
    node_j = _positive(((record.accounting or {}).get("node") or {}).get("energy_j"))
    gpu_j = None if record.result is None else record.result.scope_energy_j(Scope.GPU)
    if node_j is None or gpu_j is None or not record.duration_s or result.slowdown_pct is None:
        return None
    slower = result.slowdown_pct.value
    lost_s = result.train_s * slower / max(100 + slower, 1.0)
    return max(0.0, node_j - gpu_j) / record.duration_s * lost_s


def _project(record: RunRecord) -> str:
    scheduler = (record.job or {}).get("scheduler")
    facts: Mapping[str, Any] = scheduler if isinstance(scheduler, Mapping) else {}
    return str(record.tags.get("project") or facts.get("project") or "")


def _gpu(record: RunRecord) -> str:
    """Return the kind of GPU that used most."""
    domains = [] if record.result is None else record.result.scope_domains(Scope.GPU)
    known = [d for d in domains if d.device]
    return max(known, key=lambda d: d.energy_j or 0.0).device or "" if known else ""


def _is_sound(result: SavingResult) -> bool:
    numbers = [result.train_s, result.train_j]
    for interval in (result.saved_j, result.saved_pct, result.slowdown_pct, result.expected_pct):
        if interval is not None:
            numbers += [interval.value, interval.low, interval.high]
    return all(math.isfinite(number) and abs(number) < LARGEST for number in numbers)


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and value > 0 else None


def _value(interval: GainInterval | None) -> float:
    return -math.inf if interval is None else interval.value
