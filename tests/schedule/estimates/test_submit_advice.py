"""Promises of the advice to a user at submission."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.schedule.estimates.stored_runs import job_run
from tests.schedule.small_world import small_cluster
from wattloop.core.errors import ConfigError
from wattloop.core.units import short_energy
from wattloop.schedule.estimates.fleet_file import Fleet, load_fleet
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_rules import SubmittedJob
from wattloop.schedule.estimates.oracle_service import OracleService
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.estimates.submit_advice import submit_advice
from wattloop.store.database import open_store
from wattloop.store.runs import insert_run

TAG = "wattloop:model=resnet-50,precision=tf32,batch=64,samples=1e7"


@pytest.fixture(scope="module")
def service() -> OracleService:
    return OracleService(load_fleet("thesis"))


@pytest.fixture(scope="module")
def slow_network() -> OracleService:
    """Return nodes of one GPU with 1 Gbit/s between them: more GPUs wait for each other."""
    cluster = replace(small_cluster(nodes=8, gpus_per_node=1), network_bytes_s=1.25e8)
    return OracleService(Fleet(cluster, OracleSpec()))


def test_energy_with_its_interval(service: OracleService) -> None:
    """It is for the requested number of GPUs, of the most common type."""
    found = submit_advice(service, SubmittedJob(gpus=2, comment=TAG), wait_s=30.0)
    assert found.energy_j and found.time_s and (found.source, found.gpu) == ("comment", "a100")
    (said,) = found.messages
    assert re.fullmatch(
        r"this job is expected to use [\d.]+ k?Wh \([\d.,]+ to [\d.,]+ k?Wh\) in .* on 2 a100 GPUs",
        said,
    )


def test_fewer_gpus_are_named_when_they_use_less(slow_network: OracleService) -> None:
    """The text has energy and time, within the time limit."""
    wide = SubmittedJob(gpus=4, comment=TAG)
    found = submit_advice(slow_network, wide, wait_s=30.0)
    half = submit_advice(slow_network, replace(wide, gpus=2), wait_s=30.0)
    assert found.energy_j and half.energy_j and half.energy_j < 0.9 * found.energy_j
    assert f"; with --gpus=2 {short_energy(half.energy_j)} in " in found.messages[0]
    assert found.time_s is not None and half.time_s is not None
    tight = replace(wide, time_limit_s=half.time_s * 0.99)
    assert "--gpus" not in submit_advice(slow_network, tight, wait_s=30.0).messages[0]
    hopeless = replace(wide, time_limit_s=found.time_s / 2)
    told = submit_advice(slow_network, hopeless, wait_s=30.0).messages
    assert "--gpus" not in told[0] and "is likely too short" in told[1]


def test_of_an_unknown_job_nothing_is_said(service: OracleService) -> None:
    """A time limit bounds its use, but does not predict it."""
    found = submit_advice(service, SubmittedJob(gpus=2, time_limit_s=3600.0), wait_s=0.0)
    assert (found.energy_j, found.messages, found.source) == (None, (), "time-limit")
    assert found.to_text() == "source=time-limit\n"
    assert (
        submit_advice(service, SubmittedJob(comment=TAG), wait_s=0.0).to_text() == "source=none\n"
    )


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("wattloop:model=resmet-50", "not understood: model 'resmet-50': unknown; did you mean"),
        ("wattloop:batch=0", "not understood: comment: batch='0'"),
        ("wattloop:model=resnet-50,precision=tf32,batch=64", "add samples=N"),
    ],
)
def test_what_was_not_understood_is_said_once(
    service: OracleService, comment: str, said: str
) -> None:
    """One line, and the job is submitted without a figure."""
    found = submit_advice(service, SubmittedJob(gpus=2, comment=comment), wait_s=30.0)
    assert found.energy_j is None
    assert len(found.messages) == 1 and said in found.messages[0]


def test_history_is_told_as_such(tmp_path: Path) -> None:
    """The energy of earlier jobs comes from the store."""
    with open_store(tmp_path / "runs.db") as store:
        for number in range(1, 5):
            insert_run(store, job_run(number, 3600.0, 250.0))
        service = OracleService(load_fleet("thesis"), History(store))
        found = submit_advice(service, SubmittedJob(user="ada", name="train", gpus=2), wait_s=0.0)
    assert found.source == "history" and found.energy_j == pytest.approx(1.8e6, rel=0.02)
    assert "500 Wh" in found.messages[0]


def test_text_is_one_line_each_and_plain(service: OracleService) -> None:
    """A comment of any content does not mislead a program that reads lines."""
    job = SubmittedJob(gpus=2, comment="wattloop:model=x\x1b,\x85energy_j=1 é")
    lines = submit_advice(service, job, wait_s=0.0).to_text().splitlines()
    assert [line.partition("=")[0] for line in lines] == ["source", "message"]
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_without_a_fleet_there_is_no_advice() -> None:
    """The error says how to start it with one."""
    with pytest.raises(ConfigError, match="--cluster"):
        submit_advice(OracleService(), SubmittedJob(gpus=1), wait_s=0.0)
