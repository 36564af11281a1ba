"""Promises of all rules together: each fault is named with a true saving; healthy runs get none."""

import pytest

from tests.advise.conftest import ARITHMETIC, LASTS_S, MEMORY, Written, busy
from tests.support.virtual_runs import CardScript, Work
from wattloop.advise.advice import Advice
from wattloop.advise.advisor import RULES, advice_on
from wattloop.core.results import RunStatus
from wattloop.integrations.run_phases import StepTotals
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord
from wattloop.virtual.gpu import IDLE, Activity


def rules(store: Store, record: RunRecord) -> list[str]:
    return [advice.rule for advice in advice_on(store, record)]


def test_a_healthy_run_gets_no_advice(store: Store, written: Written) -> None:
    """Promise: a healthy run gets no advice."""
    assert advice_on(store, written(busy(), busy())) == []


def test_idle_gpus_are_named_with_what_they_drew(store: Store, written: Written) -> None:
    """Promise: the saving of an idle GPU is its own energy, and the suggested command leaves the
    GPU out.
    """
    record = written(busy(), CardScript(), CardScript(), CardScript())
    (advice,) = advice_on(store, record)
    assert (advice.rule, advice.title) == ("idle-gpu", "GPUs 1 to 3 idle 100% of the time")
    assert advice.saving_j == pytest.approx(3 * 80 * LASTS_S, rel=0.06)
    assert advice.command.startswith("CUDA_VISIBLE_DEVICES=0 wattloop run --devices cpu,gpu:0 --")


def test_gpus_that_no_program_used_are_named(store: Store, written: Written) -> None:
    """Promise: a run that used none of the machine's GPUs is told so."""
    assert rules(store, written(CardScript())) == ["idle-gpu"]


def test_uneven_gpus_are_named(store: Store, written: Written) -> None:
    """Promise: a GPU with half the work of its peers is named; a usual difference of a tenth is
    not.
    """
    half = busy(Activity(1.0, 0.2, 0.55))
    assert rules(store, written(busy(), busy(), half)) == ["unbalanced-gpus"]
    usual = busy(Activity(1.0, 0.2, 0.92))
    assert rules(store, written(busy(), busy(), usual, run_id="run-2")) == []


@pytest.mark.parametrize("averaged", [True, False])
def test_a_loader_that_starves_the_gpu_is_named(
    store: Store, written: Written, averaged: bool
) -> None:
    """Promise: waiting between steps is found, whether or not readings resolve single steps."""
    works = [
        Work(2 + 1.7 * i + half, IDLE if half else ARITHMETIC) for i in range(33) for half in (0, 1)
    ]
    (advice,) = advice_on(store, written(CardScript(works), averaged=averaged, interval_s=0.1))
    assert advice.rule == "starved-loader"
    assert advice.time_change_share == pytest.approx(-0.4, abs=0.08)


def test_power_of_several_starved_gpus_is_said_to_be_theirs(store: Store, written: Written) -> None:
    """Promise: a sum over GPUs is not called the power of one, and `try` changes something."""
    works = [Work(2 + 2.0 * i + h, IDLE if h else ARITHMETIC) for i in range(28) for h in (0, 1)]
    waits = CardScript(works)
    (advice,) = advice_on(store, written(waits, waits, interval_s=0.1))
    assert advice.title.startswith("The 2 GPUs waited for ")
    assert "The 2 GPUs had nothing to do" in advice.text and " W together all the" in advice.text
    assert advice.command == ""  # no argument to change: repeating the run would change nothing
    command = ("python", "train.py", "--num-workers", "3")
    again = written(waits, run_id="run-2", interval_s=0.1, command=command)
    (advice,) = advice_on(store, again)
    assert advice.title.startswith("The GPU waited for ")
    assert advice.command == "wattloop run -- python train.py --num-workers 6"


def test_recorded_waits_for_data_are_evidence(store: Store, written: Written) -> None:
    """Promise: waiting that the loop recorded is evidence enough, at any utilisation."""
    steps = [
        {
            "type": "step",
            "kind": "step",
            "index": i,
            "begin_s": 1_002.0 + i,
            "end_s": 1_003.0 + i,
            "energy": {},
            "metrics": {"data_s": 0.4},
        }
        for i in range(50)
    ]
    (advice,) = advice_on(store, written(busy(), events=steps))
    assert advice.rule == "starved-loader"
    assert "50 steps told" in advice.evidence[0]


def test_kernels_too_small_for_the_gpu_are_named(store: Store, written: Written) -> None:
    """Promise: full utilisation at low power means a small batch, and the advice is a larger
    one.
    """
    works = [Work(2.0, Activity(1.0, 0.5, 0.1), resident=0.97), Work(59.0, IDLE)]
    command = ("python", "train.py", "--batch-size", "8")
    record = written(CardScript(works, memory_share=0.05), command=command)
    (advice,) = advice_on(store, record)
    assert advice.rule == "launch-bound"
    assert advice.command == "wattloop run -- python train.py --batch-size 32"
    full = written(CardScript(works, memory_share=0.9), run_id="run-2")
    assert rules(store, full) == []  # a larger batch would not fit


def test_rests_too_short_to_be_seen_are_not_blamed_on_data(store: Store, written: Written) -> None:
    """Promise: an even, low utilisation is blamed on a slow host, not on the data loader."""
    works = [Work(2.0, Activity(1.0, 0.5, 0.6), resident=0.6), Work(59.0, IDLE)]
    (advice,) = advice_on(store, written(CardScript(works)))
    assert advice.title.startswith("The GPU waited for the host")
    assert "torch.compile" in advice.text and "loader" in advice.text


def test_a_tail_without_work_is_named(store: Store, written: Written) -> None:
    """Promise: the saving is what GPUs draw after their last work; a program's normal end is not
    named.
    """
    (advice,) = advice_on(store, written(busy(until_s=40.0), interval_s=0.1))
    assert advice.rule == "idle-tail"
    assert advice.saving_j == pytest.approx(80 * 20, rel=0.08)
    assert rules(store, written(busy(until_s=57.0), run_id="run-2")) == []


def test_a_cap_that_costs_no_time_is_predicted(store: Store, written: Written) -> None:
    """Promise: memory-bound work gets a lower cap; compute-bound or already capped work does
    not.
    """
    (advice,) = advice_on(store, written(busy(MEMORY)))
    assert advice.rule == "cap-too-high"
    assert advice.source.startswith("by prediction")
    assert advice.command == "wattloop cap find --gpus 0 -- python train.py"
    # the card's own model: the best cap within 5% of the time saves 33% of the GPU's energy
    assert 0.2 < advice.saving_share < 0.35
    assert rules(store, written(busy(MEMORY, limit_share=0.5), run_id="run-2")) == []


def test_a_saved_run_gets_no_advice_on_caps(store: Store, written: Written) -> None:
    """Promise: steps make `run --save` the advice; a saving that it measured is not predicted
    again.
    """
    steps = {"type": "phases", "time_s": 0.0, **StepTotals(100).to_dict()}
    record = written(busy(MEMORY), events=[steps])
    (advice,) = advice_on(store, record)
    assert advice.command == "wattloop run --save -- python train.py"
    record.saving = {"state": "applied"}
    assert rules(store, record) == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"tags": {"precision": "fp32"}}, ["fp32"]),
        ({"command": ("python", "t.py", "--dtype", "float32")}, ["fp32"]),
        ({"events": [{"type": "precision", "value": "32-true"}]}, ["fp32"]),
        ({"tags": {"precision": "bf16"}}, []),
        ({"command": ("python", "t.py", "--bf16", "--dtype", "float32")}, []),
        ({}, []),
    ],
)
def test_fp32_needs_evidence(
    store: Store, written: Written, said: dict[str, object], expected: list[str]
) -> None:
    """Promise: precision comes from a record, never from a guess; contradicting records count as
    none.
    """
    assert rules(store, written(busy(), **said)) == expected


def test_programs_that_answer_requests_may_wait(store: Store, written: Written) -> None:
    """Promise: a server's waiting is called neither a starved loader nor an idle GPU."""
    works = [Work(2 + 2.0 * i + h, IDLE if h else ARITHMETIC) for i in range(28) for h in (0, 1)]
    served = written(CardScript(works), command=("vllm", "serve", "llama"))
    assert rules(store, served) == []
    trained = written(CardScript(works), run_id="run-2")
    assert rules(store, trained) == ["starved-loader"]


def test_advice_is_ranked_and_never_without_source(store: Store, written: Written) -> None:
    """Promise: the largest saving comes first; each has evidence, a source and an existing rule."""
    found = advice_on(store, written(busy(MEMORY, until_s=45.0), CardScript(), CardScript()))
    assert {a.rule for a in found} == {"idle-gpu", "idle-tail", "cap-too-high"}
    shares = [advice.saving_share for advice in found]
    assert shares == sorted(shares, reverse=True)
    assert all(a.source and a.evidence and a.rule in RULES for a in found)
    assert all("simulated" in a.source for a in found)
    with pytest.raises(ValueError, match="source"):
        Advice(
            rule="x",
            title="",
            text="",
            saving_j=1.0,
            saving_share=0.5,
            time_change_share=None,
            evidence=("a",),
            source="",
        )


def test_runs_that_say_nothing_get_no_advice(store: Store, written: Written) -> None:
    """Promise: runs without a GPU, unfinished, counted by another run, or short get no advice."""
    assert advice_on(store, written()) == []
    record = written(busy(), CardScript(), run_id="run-2")
    assert advice_on(store, record)
    record.counted = False
    assert advice_on(store, record) == []
    record.counted, record.status = True, RunStatus.RUNNING
    assert advice_on(store, record) == []
    short = written(busy(until_s=7.0), CardScript(), run_id="run-3", duration_s=8.0)
    assert advice_on(store, short) == []
