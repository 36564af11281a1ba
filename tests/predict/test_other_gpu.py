"""Promises of a measured run on another GPU: valid bounds, and errors with a remedy."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.first_look import SETTINGS, fill
from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.run_total import (
    JobOnGpu,
    PredictedAmount,
    SourceJob,
    job_on_gpu,
    job_table,
    measured_job,
)
from wattloop.store.database import open_store
from wattloop.store.runs import RunRecord

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    with open_store(tmp_path_factory.mktemp("other-gpu") / "runs.db") as store:
        return fill(store)["gpt2"]


def test_a_run_has_its_own_tariff_room_and_carbon_on_another_gpu(record: RunRecord) -> None:
    """Without any setting: cost and CO2e are those of the run, with the new energy."""
    found = job_on_gpu(measured_job(record, Settings(), "h100-sxm"), gpu_named("h100-sxm"))
    assert found.job.gpu.name == "h200" and found.job.gpus == 2
    assert record.accounting is not None and found.cost is not None
    measured = found.job.priced(PredictedAmount(found.job.facility_j)).cost
    assert measured is not None
    assert measured.value == pytest.approx(record.accounting["cost"]["amount"])
    ratio = found.energy_j.value / found.job.energy_j
    assert found.cost.value == pytest.approx(measured.value * ratio)
    assert found.carbon_g is not None and found.job.currency == "EUR"
    rows = {row[0]: row for row in job_table(found).rows}
    assert "EUR" in rows["cost"][2] and " to " in rows["cost"][3]


def test_stated_tariff_counts_instead_of_the_run_s(record: RunRecord) -> None:
    job = measured_job(record, SETTINGS._replace(tariff_per_kwh=2.8, currency="CHF"), "h100-sxm")
    assert (job.tariff_per_kwh, job.currency) == (2.8, "CHF")


def test_the_same_gpu_takes_the_same_time_and_energy(record: RunRecord) -> None:
    job = measured_job(record, Settings(), "h200")
    found = job_on_gpu(job, job.gpu)
    assert found.time_s.value == pytest.approx(job.duration_s)
    assert found.energy_j.value == pytest.approx(job.energy_j, rel=0.01)
    assert found.energy_j.interval is not None
    assert found.energy_j.interval.low < job.energy_j < found.energy_j.interval.high


def test_without_a_tariff_the_option_is_named(record: RunRecord) -> None:
    plain = replace(record, accounting=None)
    found = job_on_gpu(measured_job(plain, Settings(), "h100-sxm"), gpu_named("h100-sxm"))
    assert found.cost is None and any("--tariff '0.25 EUR'" in note for note in found.notes)


def test_runs_that_do_not_say_enough_are_refused_with_a_remedy(record: RunRecord) -> None:
    """No GPU was read, the GPU is unknown, or the run has not ended."""
    assert record.result is not None
    cpus = tuple(d for d in record.result.domains if d.scope is Scope.CPU)
    others = tuple(d._replace(device="Matrox G200") for d in record.result.domains)
    script = ["python", "train.py", "--size", "8"]
    remedy = "--script train.py --gpu h100-sxm -- --size 8$"
    for domains, reason in ((cpus, "no GPU was read"), (others, "no GPU called")):
        broken = replace(record, result=record.result._replace(domains=domains), command=["./a"])
        with pytest.raises(ConfigError, match=f"{reason}.*wattloop predict --model"):
            measured_job(broken, Settings(), "h100-sxm")
        with pytest.raises(ConfigError, match=f"{reason}.*wattloop predict {remedy}"):
            measured_job(replace(broken, command=script), Settings(), "h100-sxm")
    live = replace(record, status=RunStatus.RUNNING, result=None)
    with pytest.raises(ConfigError, match="has not ended"):
        measured_job(live, Settings(), "h100-sxm")


class Pair(NamedTuple):
    """The same training on two GPUs: seconds and, where known, watts."""

    own: str
    other: str
    time_ratio: float
    power_w: float | None = None
    other_w: float | None = None


def test_bounds_hold_for_published_pairs_of_gpus() -> None:
    """Published times and powers: 90% are within the intervals, half of them within 20%."""
    if not (DATA / "zeus_nsdi23").is_dir():
        pytest.skip("the published measurements are not on this machine")
    pairs = [*_zeus(), *_gavel(), *_neusight(), *_foundry()]
    assert len(pairs) > 300
    moved = [(pair, _moved(pair)) for pair in pairs]
    powered = [(pair, found) for pair, found in moved if pair.power_w]
    assert _share(_holds(m.time_s, 100 * p.time_ratio) for p, m in moved) >= 0.9
    assert _share(_holds(m.power_w, p.other_w or 0) for p, m in powered) >= 0.9
    errors = sorted(abs(math.log(m.time_s.value / 100 / p.time_ratio)) for p, m in moved)
    assert errors[len(errors) // 2] < 0.2
    energies = ((m.energy_j, 100 * p.time_ratio * (p.other_w or 0)) for p, m in powered)
    assert _share(_holds(*each) for each in energies) >= 0.9


def _moved(pair: Pair) -> JobOnGpu:
    own = gpu_named(pair.own)
    energy_j = 100 * (pair.power_w or own.tdp_w)
    job = SourceJob("r", "r", own, 1, 100, energy_j, 0, energy_j, None, "", None, True)
    return job_on_gpu(job, gpu_named(pair.other))


def _holds(amount: PredictedAmount, true: float) -> bool:
    assert amount.interval is not None
    return amount.interval.low <= true <= amount.interval.high


def _share(hits: Iterator[bool]) -> float:
    found = list(hits)
    return sum(found) / len(found)


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _zeus() -> list[Pair]:
    """At the highest power limit."""
    best: dict[str, dict[tuple[str, ...], tuple[float, float, float]]] = {}
    for gpu, name in (("v100", "v100-pcie-32"), ("a40", "a40")):
        best[name] = found = {}
        for row in _rows(f"zeus_nsdi23/power_{gpu}.csv"):
            key = (row["dataset"], row["network"], row["batch_size"], row["optimizer"])
            limit, time_s, power_w = map(
                float, (row["power_limit"], row["time_per_epoch"], row["average_power"])
            )
            found[key] = max(found.get(key, (0.0, 0.0, 0.0)), (limit, time_s, power_w))
    pairs = []
    for own, other in (("v100-pcie-32", "a40"), ("a40", "v100-pcie-32")):
        for key in best[own].keys() & best[other].keys():
            (_, own_s, own_w), (_, other_s, other_w) = best[own][key], best[other][key]
            pairs.append(Pair(own, other, other_s / own_s, own_w, other_w))
    return pairs


def _gavel() -> list[Pair]:
    names = {"k80": "k80", "p100": "p100-pcie", "v100": "v100-sxm-16"}
    rates: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in _rows("cluster/gavel_throughputs.csv"):
        is_one = row["scale_factor"] == "1" and row["source"] == "physical_cluster"
        if is_one and row["gpu_type"] in names and float(row["steps_per_s"]) > 0:
            key = (row["model"], row["batch"])
            rates[key][names[row["gpu_type"]]] = float(row["steps_per_s"])
    return _all_pairs(rates)


def _neusight() -> list[Pair]:
    rates: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in _rows("neusight/e2e.csv"):
        if row["fusion"] == "0" and row["parallel"] == "none":
            gpu = gpu_named(row["gpu"].replace("_", " ")).name
            key = (row["model"], row["mode"], row["seq_len"], row["batch"])
            rates[key][gpu] = 1 / float(row["measured_ms"])
    return _all_pairs(rates)


def _foundry() -> list[Pair]:
    names = {"h100_80gb": "h100-sxm", "a100_80gb": "a100-sxm-80", "a100_40gb": "a100-sxm-40"}
    same = ("Model", "SeqLen (T)", "# GPUs", "Sharding Strategy", "Activation Checkpointing")
    rates: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in _rows("llm/llm_foundry_fsdp.csv"):
        if row["GPU"] in names:
            found = rates[(*(row[name] for name in same), row["Precision"])]
            rate = float(row["Throughput (T/s)"])
            found[names[row["GPU"]]] = max(found.get(names[row["GPU"]], 0.0), rate)
    return _all_pairs(rates)


def _all_pairs(rates: dict[tuple[str, ...], dict[str, float]]) -> list[Pair]:
    return [
        Pair(own, other, found[own] / found[other])
        for found in rates.values()
        for own in found
        for other in found
        if own != other
    ]
