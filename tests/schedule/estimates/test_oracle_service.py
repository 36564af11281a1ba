"""Promises of the oracle as a service: every pair has an estimate or a reason."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from tests.schedule.estimates.stored_runs import job_run
from wattloop.core.errors import ConfigError
from wattloop.fleet.job_comment import JobComment
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.forecaster import Forecaster
from wattloop.predict.parallel.layout import Links
from wattloop.predict.parallel.model import ParallelQuestion, predict_parallel
from wattloop.schedule.estimates.analytic import kind_workload, predict_question
from wattloop.schedule.estimates.fleet_file import Fleet, load_fleet
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_rules import SubmittedJob
from wattloop.schedule.estimates.oracle_service import AskedJob, OracleService
from wattloop.schedule.estimates.placement_estimates import PlacementQuery
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs import JobKind
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run

RESNET = JobComment("resnet50", (64,), 1e6, precision="tf32")
H200, A100 = PlacementQuery("h200"), PlacementQuery("a100-sxm-40")


@pytest.fixture(scope="module")
def service() -> OracleService:
    return OracleService()


def test_a_price_is_what_predict_says(service: OracleService) -> None:
    """Time, power and interval of a step, times the steps of the job."""
    place = PlacementQuery("h200", 4, 500.0)
    answer = service.answer([AskedJob(stated=RESNET)], [place])
    price = answer.prices[0]
    workload = kind_workload(JobKind("hf:resnet-50", "tf32"), 64)
    question = replace(predict_question(JobKind("hf:resnet-50", "tf32"), 64), model=workload)
    one = Forecaster().answer(replace(question, gpus=4, cap_w=500.0, gpu="h200")).prediction
    assert price.time_s == pytest.approx(1e6 / 256 * one.step_s)
    assert price.power_w == pytest.approx(4 * one.power_w)
    assert price.factors is not None and one.step_interval is not None
    assert one.step_s * price.factors["time"] == pytest.approx(one.step_interval.high)
    assert one.power_interval is not None
    told = answer.to_dict()["results"][0]["intervals"]["power_w"]
    assert told == pytest.approx([4 * one.power_interval.low, 4 * one.power_interval.high])
    assert price.provenance == "predicted" and "h200" in price.source


def test_layouts_and_services_have_prices(service: OracleService) -> None:
    """Time and power are those of `--parallel` and of `predict serve` at a rate; errors name a
    remedy.
    """
    trained = JobComment(
        "llama-3.1-8b", (2,), 1e5, parallel="tp=2,fsdp", checkpointing="full", sequence=4096
    )
    served = JobComment("llama-3.1-8b", requests_per_s=8.0, prompt=1024, output=256)
    asked = [AskedJob(stated=trained), AskedJob(SubmittedJob(time_limit_s=7200.0), served)]
    eight, one = PlacementQuery("h100-sxm", 8), PlacementQuery("h100-sxm", 1)
    found = service.answer(asked, [eight, one])
    layout, refused, copies, alone = found.prices
    alike = predict_parallel(
        ParallelQuestion(
            model="hf:llama-3.1-8b", gpu="h100-sxm", layout="tp=2,fsdp=4", seq=4096, micro_batch=2,
            checkpointing="full",
            links=Links.of(gpu_named("h100-sxm"), gpus_per_node=8, network_bytes_s=25e9),
        )
    )  # fmt: skip
    assert layout.time_s == pytest.approx(1e5 * 4096 / alike.tokens_s)
    assert layout.power_w == pytest.approx(8 * alike.power_w)
    told = found.to_dict()["results"][0]["intervals"]
    assert told["time_s"][1] / layout.time_s == pytest.approx(1.27, abs=0.01)
    assert told["power_w"] is None
    assert "does not divide 1 GPUs; 2, 4, 8, 16 would work" in refused.error
    assert copies.time_s == alone.time_s == 7200.0
    assert alone.power_w < copies.power_w < 8 * alone.power_w
    late = service.answer(asked, [PlacementQuery("h200", 8)], wait_s=0.0)
    assert all(price.later for price in late.prices)


def test_power_is_not_thought_to_exceed_the_cap(service: OracleService) -> None:
    """Intervals end where GPUs stay at their limit, within 2%."""
    answer = service.answer([AskedJob(stated=RESNET)], [PlacementQuery("h200", 2, 300.0)])
    assert answer.prices[0].factors is not None and answer.prices[0].power_w is not None
    assert answer.prices[0].power_w * answer.prices[0].factors["power"] > 620
    assert answer.to_dict()["results"][0]["intervals"]["power_w"][1] == pytest.approx(612)


def test_a_wrong_pair_does_not_spoil_the_others(service: OracleService) -> None:
    """Unknown model, unknown GPU, impossible cap, too large a batch: each has its own error."""
    jobs = [
        AskedJob(stated=RESNET),
        AskedJob(stated=JobComment("resmet50", (64,), 1e6)),
        AskedJob(stated=replace(RESNET, batches=(256,))),
        AskedJob(SubmittedJob(comment="wattloop:model=$(x)")),
    ]
    places = [
        H200,
        PlacementQuery("h2000"),
        PlacementQuery("h200", 1, 5.0),
        PlacementQuery("k80"),
        PlacementQuery("x.yaml"),
    ]
    answer = service.answer(jobs, places)
    said = {pair: price.error for pair, price in zip(answer.pairs, answer.prices, strict=True)}
    assert said[0, 0] == "" and said[2, 0] == ""
    assert "no GPU called 'h2000'" in said[0, 1]
    assert "can be set to" in said[0, 2]
    assert "files are not read here" in said[0, 4]
    assert "did you mean resnet-50" in said[1, 0]
    assert "memory: does not fit" in said[2, 3]
    assert "characters other than" in said[3, 0]


def test_of_several_batches_the_best_is_taken(service: OracleService) -> None:
    """The objective chooses, and the answer names the batch; one that does not fit is left out."""
    both = replace(RESNET, batches=(256, 64))
    many = service.answer([AskedJob(stated=both)], [H200, PlacementQuery("k80")])
    alone = [
        service.answer([AskedJob(stated=replace(RESNET, batches=(batch,)))], [H200]).prices[0]
        for batch in (64, 256)
    ]
    best = min(alone, key=lambda price: price.energy_j or 0.0)
    assert many.prices[0].batch == best.batch
    assert many.prices[1].batch == 64


def test_the_best_placement_keeps_the_deadline(service: OracleService) -> None:
    """Least energy without a deadline; with one, the least in time; none in time, the least
    late.
    """
    places = [
        PlacementQuery("h200", 1, 300.0),
        PlacementQuery("h200", 1),
        PlacementQuery("h200", 8),
    ]
    free, quick = (service.answer([AskedJob(stated=RESNET)], places, objective=each)
                   for each in ("energy", "time"))  # fmt: skip
    assert free.best == (0,) and quick.best == (2,)
    times = [price.time_s or 0.0 for price in free.prices]
    tight = replace(RESNET, deadline_s=times[1] * 1.01)
    assert service.answer([AskedJob(stated=tight)], places).best == (1,)
    hopeless = replace(RESNET, deadline_s=1.0)
    assert service.answer([AskedJob(stated=hopeless)], places).best == (2,)


def test_low_power_jobs_get_a_cap_where_the_placement_has_none(service: OracleService) -> None:
    """70% of the limit; a given cap stays."""
    job = AskedJob(stated=replace(RESNET, low_power=True))
    answer = service.answer([job], [H200, PlacementQuery("h200", 1, 500.0)])
    assert [price.cap_w for price in answer.prices] == [pytest.approx(0.7 * 700), 500.0]


def test_without_samples_there_is_power_but_no_total(service: OracleService) -> None:
    """No total is invented, and the best placement per sample is still given."""
    answer = service.answer([AskedJob(stated=replace(RESNET, work=None))], [A100, H200])
    assert answer.prices[0].time_s is None and answer.prices[0].energy_j is None
    assert answer.prices[0].power_w and answer.prices[0].samples_s
    assert answer.best[0] is not None
    assert "samples not stated" in answer.jobs[0].notes[0]


def test_unknown_jobs_are_priced_by_history_or_limit(tmp_path: Path) -> None:
    """Measured with its spread, or the most that it may use; the provenance says which."""
    with open_store(tmp_path / "runs.db") as store:
        for number, seconds in enumerate((90.0, 100.0, 120.0), start=1):
            insert_run(store, job_run(number, seconds, 250.0))
        service = OracleService(history=History(store))
        known = SubmittedJob(user="ada", name="train", gpus=2)
        unknown = SubmittedJob(user="ada", name="other", gpus=2, time_limit_s=600.0)
        two, one = PlacementQuery("h200", 2), PlacementQuery("h200", 1)
        answer = service.answer([AskedJob(known), AskedJob(unknown), AskedJob()], [two, one])
    by_pair = dict(zip(answer.pairs, answer.prices, strict=True))
    measured, limit = by_pair[0, 0], by_pair[1, 0]
    assert (measured.time_s, measured.provenance) == (100.0, "simulated")
    assert measured.power_w == pytest.approx(500.0, rel=0.02)
    assert measured.factors is not None and 1.1 < measured.factors["time"] < 1.2
    assert (limit.time_s, limit.power_w, limit.provenance) == (600.0, 1400.0, "limit")
    assert "on 1 GPUs" in by_pair[0, 1].error
    assert "nothing is known" in by_pair[2, 0].error


def test_a_model_that_is_being_traced_comes_later() -> None:
    """The request is answered all the same, and a repeated request has it a moment later."""
    service = OracleService()
    jobs, places = [AskedJob(stated=RESNET), AskedJob(SubmittedJob(time_limit_s=60.0))], [H200]
    with service._kept._workloads._one_at_a_time:
        early = service.answer(jobs, places, wait_s=0.0)
    assert early.prices[0].later and "being traced" in early.prices[0].error
    assert early.prices[1].time_s == 60.0
    assert service.answer(jobs, places, wait_s=30.0).prices[0].time_s


def test_without_placements_the_fleet_answers() -> None:
    """It lists all placements of the cluster that the job may use, by prediction or table."""
    asked = [AskedJob(SubmittedJob(comment="wattloop:model=resnet-50,precision=tf32,batch=64,"
                                           "samples=1e6,gpus=1|2,caps=0.7|1"))]  # fmt: skip
    fleet = load_fleet("thesis")
    predicted = OracleService(fleet).answer(asked, [])
    looked_up = OracleService(Fleet(fleet.cluster, OracleSpec(kind="table"))).answer(asked, [])
    for answer in (predicted, looked_up):
        assert len(answer.prices) == 2 * 2 * 2 and not any(p.error for p in answer.prices)
        assert {place.gpu for place in answer.places} == {"a100", "h100"}
    assert predicted.prices[0].factors and not looked_up.prices[0].factors
    rows = looked_up.to_dict()["results"]
    assert rows[0]["provenance"] == "table" and rows[0]["intervals"]["time_s"] is None


def test_senseless_questions_are_refused(service: OracleService) -> None:
    """Too many pairs, empty pairs, or no placements."""
    jobs = [AskedJob(stated=RESNET)]
    with pytest.raises(ConfigError, match="start it with --cluster"):
        service.answer(jobs, [])
    with pytest.raises(ConfigError, match="there are 1 jobs, 1 placements"):
        service.answer(jobs, [H200], [(0, 1)])
    with pytest.raises(ConfigError, match="pairs; at most"):
        service.answer(jobs * 200, [H200] * 100)
    with pytest.raises(ConfigError, match="no placements are given"):
        service.answer(jobs, [], [(0, 0)])


def test_what_is_kept_is_settled_once() -> None:
    """Python's collector runs after new entries, and not after known ones."""
    service = OracleService()
    jobs, places = [AskedJob(stated=RESNET)], [H200]
    service.answer(jobs, places, wait_s=30.0)
    frozen = gc.get_freeze_count()
    assert service.settle()
    assert gc.get_freeze_count() > frozen
    service.answer(jobs, places)
    assert not service.settle()


def test_names_of_gpus_mean_what_they_mean_elsewhere() -> None:
    """`a100` is the same GPU as in the table of GPUs."""
    answer = OracleService().answer([AskedJob(stated=RESNET)], [PlacementQuery("a100")])
    assert gpu_named("a100").name in answer.prices[0].source
