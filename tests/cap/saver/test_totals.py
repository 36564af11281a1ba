"""Promises of sums of savings over runs: values, intervals, money, CO2e and odd records."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from wattloop.cap.finder import GainInterval
from wattloop.cap.saver.proof import SavingResult, SavingState, Setting, SettingPeriod
from wattloop.cap.saver.totals import group_savings, read_savings, run_saving, sum_savings
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.core.settings import Settings
from wattloop.store.database import Store, open_store
from wattloop.store.run_record import RunRecord
from wattloop.store.runs import insert_run, insert_run_in, list_runs

KWH = 3.6e6
HOUR_S = 3_600.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        yield store


def saving(saved_j: float = 0.2 * KWH, half_j: float = 0.03 * KWH, **changes: Any) -> SavingResult:
    """A run that used 0.8 kWh, in an hour that was 2% longer."""
    used_j = 0.8 * KWH
    bounds = (saved_j, saved_j - half_j, saved_j + half_j)
    known: dict[str, Any] = {
        "state": SavingState.APPLIED,
        "periods": (SettingPeriod(10.0, Setting(250.0)),),
        "saved_j": GainInterval(*bounds),
        "saved_pct": GainInterval(*(100 * x / (used_j + x) for x in bounds)),
        "slowdown_pct": GainInterval(2.0, 1.0, 3.0),
        "reference_slices": 12,
        "saving_slices": 140,
        "pairs": 11,
        "train_s": HOUR_S,
        "train_j": used_j,
    }
    return SavingResult(**known | changes)


OBSERVED = SavingResult(
    SavingState.OBSERVED,
    "permission denied",
    expected_pct=GainInterval(15.0, 5.0, 25.0),
    train_s=HOUR_S,
    train_j=0.8 * KWH,
)


def record(run_id: str, saved: SavingResult | dict[str, Any] | None, **changes: Any) -> RunRecord:
    """A run of an hour with 0.9 kWh of one GPU, in a node that used 1.2 kWh."""
    gpu = DomainEnergy(
        name="gpu:0",
        scope=Scope.GPU,
        energy_j=0.9 * KWH,
        uncertainty_j=0.0,
        provenance=Provenance.MEASURED,
        source="NVML",
        device="NVIDIA A40",
    )
    known: dict[str, Any] = {
        "name": "train",
        "user": "ada",
        "host": "node1",
        "started_wall_s": 1_800_000_000.0,
        "result": WindowResult("train", 0, None, 0.0, HOUR_S, (gpu,), (), ()),
        "accounting": {
            "node": {"energy_j": 1.2 * KWH, "provenance": "modelled"},
            "facility": {"energy_j": 1.8 * KWH, "pue": 1.5},
            "cost": {"amount": 0.36, "currency": "EUR", "tariff_per_kwh": 0.2},
            "carbon_g": 180.0,
            "carbon_intensity": {"g_co2e_per_kwh": 100.0, "zone": "CHE", "source": "test"},
        },
        "saving": saved.to_dict() if isinstance(saved, SavingResult) else saved,
    }
    return RunRecord(run_id=run_id, **known | changes)


def slurm(number: int, **facts: Any) -> dict[str, Any]:
    return {"id": str(number), "scheduler": {"scheduler": "slurm", "job": str(number), **facts}}


def fill(store: Store, *records: RunRecord) -> list[Any]:
    with store.writing() as connection:
        for each in records:
            insert_run_in(connection, each)
    return read_savings(store, Settings())


def test_one_run(store: Store) -> None:
    """Promise: energy at the GPU, money and CO2e with PUE, and the evidence of the run."""
    (run,) = fill(store, record("r1", saving()), record("plain", None))
    assert (run.setting, run.reference_slices, run.saving_slices, run.pairs) == (
        "250 W",
        12,
        140,
        11,
    )
    assert run.saved_j == GainInterval(0.2 * KWH, 0.17 * KWH, 0.23 * KWH)
    assert run.gpu == "NVIDIA A40"
    assert run.cost is not None
    assert run.cost.value == pytest.approx(0.2 * 1.5 * 0.2)
    assert run.carbon_g is not None
    assert run.carbon_g.low == pytest.approx(0.17 * 1.5 * 100)
    # 2% slower: 2/102 of the hour, in which the rest of the node draws 0.3 kW
    assert run.rest_j == pytest.approx(0.3 * KWH * 2 / 102)
    total = sum_savings([run])
    assert total.saved_pct is not None
    assert total.saved_pct.value == pytest.approx(20.0)
    assert total.slowdown_pct is not None
    assert (total.slowdown_pct.value, total.slowdown_pct.high) == pytest.approx((2.0, 3.0))
    assert total.to_dict()["saved_kwh"]["high"] == pytest.approx(0.23)


def test_intervals_of_jobs_are_independent_and_of_nodes_are_not(store: Store) -> None:
    """Promise: half-widths of jobs add in squares, those of the nodes of one job add linearly."""
    alone = [record(f"r{n}", saving()) for n in range(4)]
    total = sum_savings(fill(store, *alone))
    assert total.saved_j is not None
    assert total.saved_j.value == pytest.approx(0.8 * KWH)
    assert total.saved_j.high - total.saved_j.value == pytest.approx(0.06 * KWH)
    nodes = [record(f"n{n}", saving(), job=slurm(7), host=f"node{n}") for n in range(4)]
    shared = sum_savings([run for run in fill(store, *nodes) if run.run_id.startswith("n")])
    assert shared.saved_j is not None
    assert shared.saved_j.high - shared.saved_j.value == pytest.approx(0.12 * KWH)


def test_the_interval_covers_the_sum() -> None:
    """Promise: of sums of independent runs, the 90% interval covers about nine in ten."""
    draw, covered = random.Random(3), 0
    one = run_saving(record("r", saving()))
    assert one is not None
    half_j = 0.03 * KWH
    for _ in range(400):
        values = [draw.gauss(0.2 * KWH, half_j / 1.645) for _ in range(10)]
        runs = [
            replace(one, job=str(n), saved_j=GainInterval(x, x - half_j, x + half_j))
            for n, x in enumerate(values)
        ]
        total = sum_savings(runs).saved_j
        assert total is not None
        covered += total.low <= 2.0 * KWH <= total.high
    assert 0.86 <= covered / 400 <= 0.94


def test_runs_in_which_nothing_was_set(store: Store) -> None:
    """Promise: their possible saving stays out of the sum, and model errors add up."""
    left = SavingResult(SavingState.LEFT, "too short")
    runs = fill(
        store,
        record("a", saving()),
        record("b", OBSERVED),
        record("c", OBSERVED),
        record("d", left),
    )
    total = sum_savings(runs)
    assert (total.runs, total.compared, total.observed, total.left_alone) == (4, 1, 2, 1)
    assert total.saved_j is not None
    assert total.saved_j.value == pytest.approx(0.2 * KWH)
    assert total.expected_j is not None
    assert total.expected_j.value == pytest.approx(0.24 * KWH)
    assert total.expected_j.high == pytest.approx(0.40 * KWH)


def test_currencies_and_zones(store: Store) -> None:
    """Promise: amounts of different currencies are not added; runs without a price are counted."""
    accounting = dict(record("x", None).accounting or {})
    dollars = accounting | {"cost": {"currency": "USD", "tariff_per_kwh": 0.1, "amount": 1.0}}
    neither = accounting | {"cost": None, "carbon_g": None, "carbon_intensity": None}
    coal = accounting | {"carbon_intensity": {"g_co2e_per_kwh": 800.0, "zone": "POL"}}
    total = sum_savings(
        fill(
            store,
            record("a", saving()),
            record("b", saving(), accounting=dollars),
            record("c", saving(), accounting=neither),
            record("d", saving(), accounting=coal),
        )
    )
    assert {unit: round(cost.value, 6) for unit, cost in total.cost.items()} == {
        "EUR": 0.12,
        "USD": 0.03,
    }
    assert (total.compared, total.with_cost, total.with_carbon) == (4, 3, 3)
    assert total.carbon_g is not None
    assert total.carbon_g.value == pytest.approx(0.3 * (100 + 100 + 800))


def test_the_present_tariff_is_used_where_the_run_had_none(store: Store) -> None:
    """Promise: present settings fill in missing values, as `runs show` does."""
    accounting = dict(record("x", None).accounting or {}) | {"cost": None}
    insert_run(store, record("a", saving(), accounting=accounting))
    settings = Settings(
        tariff_per_kwh=1.0, currency="CHF", sources={"tariff_per_kwh": "flag --tariff"}
    )
    (run,) = read_savings(store, settings)
    assert run.currency == "CHF"
    assert run.cost is not None
    assert run.cost.value == pytest.approx(0.3)


def test_groups(store: Store) -> None:
    """Promise: sums per user, job, project and GPU, the largest first."""
    runs = fill(
        store,
        record("a", saving(), user="ada"),
        record("b", saving(), user="ada", job=slurm(7, project="vision")),
        record("c", saving(0.1 * KWH), user="bob", tags={"project": "text"}),
    )
    by_user = group_savings(runs, "user")
    assert [(name, each.runs) for name, each in by_user.items()] == [("ada", 2), ("bob", 1)]
    assert set(group_savings(runs, "job")) == {"a", "slurm::7", "c"}
    assert set(group_savings(runs, "project")) == {"unknown", "vision", "text"}
    assert list(group_savings(runs, "gpu")) == ["NVIDIA A40"]


def test_each_saving_counts_once(store: Store) -> None:
    """Promise: a quarantined run, and a run inside a run that has the saving, do not count."""
    runs = fill(
        store,
        record("a", saving()),
        record("b", saving(), parent_run_id="a"),
        record("c", saving(), parent_run_id="not stored"),
        record("d", saving(), quarantine="impossible power"),
    )
    assert sorted(run.run_id for run in runs) == ["a", "c"]


def test_a_run_that_took_more(store: Store) -> None:
    """Promise: a loss is subtracted, not left out."""
    total = sum_savings(fill(store, record("a", saving()), record("b", saving(-0.3 * KWH))))
    assert total.saved_j is not None
    assert total.saved_j.value == pytest.approx(-0.1 * KWH)
    assert total.saved_pct is not None
    assert total.saved_pct.value < 0


ODD: list[Any] = [None, True, -1, 1e308, math.nan, math.inf, "x", [], {}, {"value": 1}, 2**70]


@pytest.mark.parametrize("field", [*SavingResult.__dataclass_fields__])
def test_odd_records_are_left_out(store: Store, field: str) -> None:
    """Promise: a malformed record of another machine does not stop the sum."""
    odd = [record(f"r{n}", saving().to_dict() | {field: value}) for n, value in enumerate(ODD)]
    total = sum_savings(fill(store, *odd, record("sound", saving())))
    assert total.runs >= 1
    assert total.saved_j is None or math.isfinite(total.saved_j.value)


@pytest.mark.parametrize(
    "accounting",
    [None, {}, {"facility": {"pue": math.nan}, "cost": {"tariff_per_kwh": "x"}}, {"node": None}],
)
def test_runs_without_accounting(store: Store, accounting: Any) -> None:
    (run,) = fill(store, record("a", saving(), accounting=accounting, result=None))
    assert (run.cost, run.carbon_g, run.rest_j, run.factor) == (None, None, None, 1.0)


def test_a_store_of_an_earlier_version(store: Store) -> None:
    """Promise: runs whose records have no savings are read, and do not count."""
    insert_run(store, record("old", None))
    with store.writing() as connection:
        connection.execute(
            text("UPDATE runs SET body = replace(body, :known, '')"), {"known": '"saving":null,'}
        )
    (run,) = fill(store, record("new", saving()))
    assert run.run_id == "new"
    assert {each.run_id for each in list_runs(store)} == {"old", "new"}


def test_many_runs(store: Store) -> None:
    """Promise: runs without a saver are not parsed, and the interval of many runs is narrow."""
    runs = fill(store, *(record(f"r{n:03}", saving() if n % 2 else None) for n in range(60)))
    total = sum_savings(runs)
    assert (len(runs), total.compared) == (30, 30)
    assert total.saved_j is not None
    assert total.saved_j.high - total.saved_j.value == pytest.approx(math.sqrt(30) * 0.03 * KWH)


def test_no_runs_at_all(store: Store) -> None:
    assert sum_savings(fill(store)).saved_j is None
