"""Promises of job facts: Slurm's data is understood, and users' imitations are ignored."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from tests.fleet.agent.scripted_node import QuietDesk, ScriptedNode, counter
from wattloop.core.records import Scope
from wattloop.fleet.agent.job_caps import JobSetup
from wattloop.fleet.agent.job_facts import (
    JobFacts,
    admin_comment,
    cpus_on_node,
    event_facts,
    gpu_names,
    parse_numbers,
    wants_low_power,
)
from wattloop.fleet.slurm_text import parse_notes

SHOWN = """\
JobId=1 JobName=train
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   WorkDir=/home/ada
   AdminComment=kept wattloop:{"cap_w":250}\x20
   Comment=hello
   StdErr=/dev/null
"""


def test_admin_comment_is_found() -> None:
    """With other people's text around ours."""
    assert parse_notes(admin_comment(SHOWN, ["train", "hello"]) or "") == {"cap_w": 250}


@pytest.mark.parametrize("words", [["x AdminComment=wattloop:{}"], ["a\n   b"]])
def test_a_job_whose_own_words_imitate_admin_comment_is_refused(words: list[str]) -> None:
    """The origin of the text is unclear, so none of it is used."""
    assert admin_comment(SHOWN, words) is None


def test_an_admin_comment_in_a_path_of_the_user_is_none() -> None:
    """Output files stand behind the place where Slurm prints the true one."""
    shown = 'JobId=1 JobName=x\n   StdErr=/tmp/a\n   AdminComment=wattloop:{"cap_w":1}\n'
    assert admin_comment(shown, ["x"]) == ""


@pytest.mark.parametrize("text", ["", "wattloop:{", "wattloop:[1]", "wattloop:{'a':1}", "x" * 9])
def test_an_admin_comment_that_is_not_ours_says_nothing(text: str) -> None:
    """Other programs of the operator may write there."""
    assert parse_notes(text) == {}


@pytest.mark.parametrize(
    ("comment", "wanted"),
    [
        ("wattloop:low-power", True),
        ("wattloop:model=resnet50,low-power", True),
        ("nightly wattloop:low-power run 3", True),
        ("low-power", False),
        ("see wattloop:model=resnet50 low-power", False),
        ("wattloop:batch=many,low-power", False),
        ("wattloop:low-power wattloop:model=resnet50", False),
        ("wattloop:model=low-powerful", False),
    ],
)
def test_low_power_is_one_word_of_a_comment_that_is_ours(comment: str, wanted: bool) -> None:
    """`--comment "wattloop:low-power"`, wherever in the comment; a tag with a fault is void."""
    assert wants_low_power(comment) is wanted


@pytest.mark.parametrize(
    ("counts", "nodes", "found"),
    [
        ("4", "n1", 4),
        ("4(x3)", "n[1-3]", 4),
        ("4(x2),8", "n[1-2],m1", 8),
        ("4,8", "n[1-2,5]", None),
        ("", "", None),
        ("many", "m1", None),
    ],
)
def test_cpus_of_a_job_on_this_node(counts: str, nodes: str, found: int | None) -> None:
    """As SLURM_JOB_CPUS_PER_NODE lists them; this is m1."""
    assert cpus_on_node(counts, nodes, "m1") == found


def test_facts_of_an_event_are_those_of_every_slurm_run() -> None:
    """By the names that `measure.job` uses; what was not said is not there."""
    facts = event_facts({"job": "7", "account": "phys"}, cluster="c", node="n1")
    assert facts == {
        "scheduler": "slurm",
        "job": "7",
        "cluster": "c",
        "project": "phys",
        "node": "n1",
    }


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0,1", [0, 1]),
        ("0-3", [0, 1, 2, 3]),
        ("5,2-3,2", [2, 3, 5]),
        ("", []),
        ("MIG-1", []),
        ("3-1", []),
    ],
)
def test_numbers_of_gpus(text: str, numbers: list[int]) -> None:
    """Lists and ranges, as versions of Slurm write them."""
    assert parse_numbers(text) == numbers


def test_gpus_are_found_by_their_minor_numbers() -> None:
    """/dev/nvidia0 may be NVML's second card; a number without a card is reported."""
    known = ["cpu:0/package", "gpu:0", "gpu:1", "gpu:2"]
    assert gpu_names([0, 1], known, {0: 1, 1: 0}) == (["gpu:1", "gpu:0"], [])
    assert gpu_names([0, 7], known, {}) == (["gpu:0"], [7])
    # virtual cards are counted after the real ones
    assert gpu_names([0, 1], ["gpu:8", "gpu:9"], {}) == (["gpu:8", "gpu:9"], [])


class WaitingSlurm(QuietDesk):
    """A controller that has been asked and has not answered."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def job_began(self, run_id: str, job: str, uid: int, gpus: Sequence[str]) -> None:
        self.asked.append((run_id, job))

    def ask_facts(self, run_id: str, job: str) -> None:
        self.asked.append((run_id, job))


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_facts_that_a_killed_agent_waited_for_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """A restart does not shorten the time to answer, however long ago the job began."""
    node = ScriptedNode(tmp_path, [(counter("gpu:0", Scope.GPU), lambda s: 100.0 * s)], monkeypatch)
    monkeypatch.setattr("wattloop.fleet.agent.open_runs.PATIENCE_S", 6.0)
    monkeypatch.setattr("wattloop.fleet.agent.agent.JobSetupThread", WaitingSlurm)
    monkeypatch.setattr(WaitingSlurm, "asked", [])
    node.start()
    node.event("start", "7", gpus="0")
    node.pass_time(2.0)
    if ended:
        node.event("end", "7", exit="0")
        node.pass_time(2.0)
    (first,) = WaitingSlurm.asked
    node.kill()
    node.pass_time(60.0)
    agent = node.start()
    assert WaitingSlurm.asked == [first, first]
    node.pass_time(5.0)
    assert [j for j in node.journals() if j.header["job"]] == [], "it waits for the answer"
    agent.open_runs.apply_setup(JobSetup(first[0], JobFacts({"name": "two cards"})))
    node.pass_time(1.0)
    (journal,) = [j for j in node.journals() if j.header["job"]]
    assert journal.header["name"] == "two cards"
    node.stop()
