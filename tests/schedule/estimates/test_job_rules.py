"""Promises of the operator's file of rules."""

from dataclasses import replace
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.fleet.job_comment import JobComment
from wattloop.schedule.cluster.file import load_cluster
from wattloop.schedule.estimates.analytic import SHIPPED
from wattloop.schedule.estimates.fleet_file import FleetOracle
from wattloop.schedule.estimates.job_estimator import EstimateSource, JobEstimator
from wattloop.schedule.estimates.job_rules import SubmittedJob, load_rules

GOOD = """\
rules:
  - name: resnet-*
    account: [vision, robots]
    job: {model: resnet-50, batch: 128, samples: 1e6, gpus: [1, 2], deadline: 2h}
  - script: "*/bert.sh"
    job: {model: bert-base-uncased, caps: [0.7, 1.0], low-power: true}
"""


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    return str(path)


def test_the_first_rule_that_fits_in_all_its_patterns_counts(tmp_path: Path) -> None:
    """Name and account, or the script; otherwise no rule."""
    rules = load_rules(_file(tmp_path, GOOD))
    both = SubmittedJob(name="resnet-7", account="robots", script="/home/a/bert.sh")
    assert rules.stated(both) == JobComment(
        model="resnet-50", batches=(128,), work=1e6, gpus=(1, 2), deadline_s=7200.0
    )
    other = rules.stated(SubmittedJob(name="resnet-7", account="text", script="/home/a/bert.sh"))
    assert other == JobComment(model="bert-base-uncased", caps=(0.7, 1.0), low_power=True)
    assert rules.stated(SubmittedJob(name="Resnet-7", account="vision")) is None


def test_long_and_strange_texts_fit_nothing(tmp_path: Path) -> None:
    """A job may have any name."""
    rules = load_rules(_file(tmp_path, "rules: [{name: '*', job: {model: gpt2}}]"))
    assert rules.stated(SubmittedJob(name="a" * 5000)) is None
    assert rules.stated(SubmittedJob(name="\x00$(x)\n")) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules:\n- nam: x\n  job: {model: gpt2}", "jobs.yaml:2: rules.0.nam: unknown field"),
        ("rules:\n- name: x", "jobs.yaml:2: rules.0.job: it is missing"),
        ("rules:\n- name: x\n  job: {batch: 3}", "jobs.yaml:3: rules.0.job: has no model"),
        (
            "rules:\n- name: x\n  job: {model: gpt2, batch: 0}",
            "jobs.yaml:3: rules.0.job: batch='0'",
        ),
        ("rules:\n- name: x\n  job: {model: gpt2, low-power: 3}", "low-power: write true or false"),
        ("rules:\n- name: x\n  job: [1]", "write fields such as"),
        ("rules:\n- name: x\n  job: {model: gpt2, gpus: {a: 1}}", "gpus: write a number"),
        ("workloads:\n  net: net.py", "jobs.yaml:2: net.py: write a saved workload"),
        ("workloads:\n  net: net.json", "no such file"),
        ("rules: 3", "jobs.yaml:1: rules: write a list"),
    ],
)
def test_faults_name_their_line(tmp_path: Path, text: str, said: str) -> None:
    """The error also says what is allowed."""
    with pytest.raises(ConfigError) as error:
        load_rules(_file(tmp_path, text))
    assert said in str(error.value)


def test_workloads_of_the_operator_are_models_like_others(tmp_path: Path) -> None:
    """A saved workload by name has only its own batch and precision."""
    saved = SHIPPED / "resnet-50-tf32-b64.json.gz"
    (tmp_path / "ours.json.gz").write_bytes(saved.read_bytes())
    text = "workloads: {our-net: ours.json.gz}\nrules: [{name: x, job: {model: our-net}}]"
    rules = load_rules(_file(tmp_path, text))
    oracle = FleetOracle.of(load_cluster("thesis"), workloads=rules.workloads)
    describer = JobEstimator(oracle, rules=rules)
    job = SubmittedJob(name="x", gpus=2, time_limit_s=600.0)
    found = describer.describe(job)
    assert found.source is EstimateSource.RULES and found.refusals == ()
    assert found.kind is not None and found.kind.batches == (64,)
    assert found.kind.precision == "tf32" and len(oracle.options(found.kind)) == 2
    wrong = describer.describe(replace(job, comment="wattloop:model=our_net,batch=9"))
    assert wrong.source is EstimateSource.TIME_LIMIT
    assert "was traced with batch 64" in wrong.refusals[0]
