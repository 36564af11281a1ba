"""Promises of the rules on phases: waste is named with its avoidable part, natural shares are not.

Each run lasts two minutes at 60 W of the processor unless told; the phases are what the hook of
`wattloop run` would have recorded of it.
"""

from typing import Any

import pytest

from tests.advise.conftest import ARITHMETIC, Written, busy
from tests.support.virtual_runs import CardScript, Work
from wattloop.advise.advice import Advice
from wattloop.advise.advisor import advice_on, silent_rules
from wattloop.advise.facts import read_facts
from wattloop.integrations.run_phases import Phase, StepTotals
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord
from wattloop.virtual.gpu import IDLE

CPU_W = 60.0
LASTS_S = 120.0


def phases(steps: int = 1_000, **times_s: tuple[float, int]) -> list[dict[str, Any]]:
    """Return the event of a run with these phases: name=(time, parts); the rest is training."""
    named = {"start_up": "start-up", "waiting": "waiting for data"}
    found = [
        Phase(named.get(name, name), time_s, CPU_W * time_s, parts)
        for name, (time_s, parts) in times_s.items()
    ]
    rest_s = LASTS_S - sum(phase.time_s for phase in found)
    found.append(Phase("training", rest_s, CPU_W * rest_s, 1))
    return [{"type": "phases", "time_s": 0.0, **StepTotals(steps, phases=tuple(found)).to_dict()}]


def advise(
    store: Store, written: Written, *cards: CardScript, run_id: str = "run-1", **script: Any
) -> list[Advice]:
    record = written(*cards, run_id=run_id, **{"duration_s": LASTS_S, **script})
    return advice_on(store, record)


def rules(found: list[Advice]) -> list[str]:
    return [advice.rule for advice in found]


WASTEFUL = {
    "compile-share": {"compilation": (40.0, 4)},
    "startup-share": {"start_up": (60.0, 1)},
    "evaluation-share": {"evaluation": (40.0, 10)},
    "checkpoint-pauses": {"checkpoint": (20.0, 10)},
    "unused-cores": {"waiting": (50.0, 900)},
}
USUAL = {
    "compile-share": {"compilation": (8.0, 4)},
    "startup-share": {"start_up": (20.0, 1)},
    "evaluation-share": {"evaluation": (16.0, 10)},
    "checkpoint-pauses": {"checkpoint": (5.0, 10)},
    "unused-cores": {"waiting": (20.0, 900)},
}


@pytest.mark.parametrize("rule", WASTEFUL)
def test_a_large_share_is_named_and_a_usual_one_is_not(
    store: Store, written: Written, rule: str
) -> None:
    """Promise: each phase that takes more than it has to is named, and usual shares are not."""
    (advice,) = advise(
        store, written, events=phases(**WASTEFUL[rule]), cpu_utilisation=0.1, run_id="wasteful"
    )
    assert advice.rule == rule
    usual = phases(**USUAL[rule])
    assert advise(store, written, events=usual, cpu_utilisation=0.1, run_id="usual") == []


@pytest.mark.parametrize("rule", WASTEFUL)
def test_short_runs_and_servers_are_not_judged_by_their_phases(
    store: Store, written: Written, rule: str
) -> None:
    """Promise: below a minute every share is natural; a server or notebook waits on purpose."""
    part = {name: (0.6 * time_s, parts) for name, (time_s, parts) in WASTEFUL[rule].items()}
    short = {"events": phases(**part), "duration_s": 59.0, "cpu_utilisation": 0.1}
    assert advise(store, written, run_id="short", **short) == []
    notebook = {"events": phases(**WASTEFUL[rule]), "command": ("jupyter", "lab")}
    assert advise(store, written, run_id="notebook", cpu_utilisation=0.1, **notebook) == []


@pytest.mark.parametrize(
    ("rule", "saved_j", "marked"),
    [
        ("compile-share", 0.7 * 40 * CPU_W, "modelled"),
        ("startup-share", (60 - 15) * CPU_W, "upper bound"),
        ("evaluation-share", 0.5 * 40 * CPU_W, "modelled"),
        ("checkpoint-pauses", 0.9 * 20 * CPU_W, "modelled"),
        ("unused-cores", 50 * CPU_W, "upper bound"),
    ],
)
def test_savings_are_the_avoidable_part_and_say_how_they_are_known(
    store: Store, written: Written, rule: str, saved_j: float, marked: str
) -> None:
    """Promise: the saving is the avoidable energy, marked `at most` where it is an upper bound."""
    events = phases(**WASTEFUL[rule])
    (advice,) = advise(store, written, events=events, cpu_utilisation=0.1)
    assert advice.saving_j == pytest.approx(saved_j, rel=0.02)
    assert advice.source.startswith(marked)
    assert advice.upper_bound is (marked == "upper bound")
    assert ("at most" in advice.line) is advice.upper_bound
    assert ("at most" in advice.saving_words) is advice.upper_bound


def test_commands_change_the_argument_that_matters(store: Store, written: Written) -> None:
    """Promise: intervals of evaluations and checkpoints get longer, and compiled code is cached."""
    command = ("python", "train.py", "--eval_steps", "50", "--save_steps=100")
    events = phases(
        compilation=(20.0, 30), start_up=(30.0, 1), evaluation=(30.0, 10), checkpoint=(10.0, 10)
    )
    found = advise(store, written, events=events, command=command)
    commands = {advice.rule: advice.command for advice in found}
    again = "python train.py --eval_steps 50 --save_steps=100"
    assert commands == {
        "compile-share": "TORCHINDUCTOR_CACHE_DIR=$HOME/.cache/torchinductor "
        f"TORCH_LOGS=recompiles,graph_breaks wattloop run -- {again}",
        "startup-share": "python -X importtime train.py --eval_steps 50 --save_steps=100 "
        "2> imports.txt",
        "evaluation-share": f"wattloop run -- {again.replace('50', '100')}",
        "checkpoint-pauses": f"wattloop run -- {again.replace('=100', '=1000')}",
    }


def test_a_single_evaluation_or_checkpoint_is_needed(store: Store, written: Written) -> None:
    """Promise: a phase that happens once cannot happen less often."""
    events = phases(evaluation=(40.0, 1), checkpoint=(20.0, 1))
    assert advise(store, written, events=events) == []


@pytest.mark.parametrize(
    ("steps", "command"), [(1_000, ("python", "train_ppo.py")), (60, ("python", "train.py"))]
)
def test_data_generated_in_evaluation_mode_is_training(
    store: Store, written: Written, steps: int, command: tuple[str, ...]
) -> None:
    """Promise: rollouts of reinforcement learning are not called evaluations."""
    events = phases(steps=steps, evaluation=(60.0, 10))
    assert advise(store, written, events=events, command=command) == []


def test_a_start_up_on_idle_gpus_counts_what_they_drew(store: Store, written: Written) -> None:
    """Promise: only the GPUs' idle power counts; GPUs that work during start-up are not idle."""
    card = CardScript([Work(60.0, ARITHMETIC), Work(119.0, IDLE)])
    events = phases(start_up=(60.0, 1))
    (advice,) = advise(store, written, card, events=events, run_id="idle")
    assert advice.rule == "startup-share"
    assert advice.saving_j == pytest.approx(80 * (60 - 15), rel=0.08)
    working = CardScript([Work(36.0, ARITHMETIC), Work(119.0, IDLE)])
    events = phases(start_up=(90.0, 1))
    assert advise(store, written, working, events=events, run_id="working") == []


WAITS = [
    Work(2 + 1.7 * i + half, IDLE if half else ARITHMETIC) for i in range(68) for half in (0, 1)
]


def starved(**script: Any) -> dict[str, Any]:
    return {"interval_s": 0.1, **script}


def test_waits_for_the_loader_are_evidence(store: Store, written: Written) -> None:
    """Promise: recorded waits name the loader once, and free cores are in the evidence."""
    (advice,) = advise(
        store,
        written,
        CardScript(WAITS),
        **starved(events=phases(waiting=(44.0, 68)), cpu_utilisation=0.1),
    )
    assert advice.rule == "starved-loader"
    assert advice.title.startswith("The GPU waited for data")
    assert advice.evidence[0].startswith("waiting for data: 44.0 s in 68 parts")
    assert "cores are free" in advice.evidence[1]


def test_waits_while_the_gpu_computes_cost_nothing(store: Store, written: Written) -> None:
    """Promise: a program that waits for its next batch while the GPU is busy is not starved."""
    events = phases(waiting=(90.0, 1_000))
    card = busy(until_s=119.0)
    assert advise(store, written, card, events=events, cpu_utilisation=0.1) == []


def test_a_full_cpu_gets_no_more_workers(store: Store, written: Written) -> None:
    """Promise: more workers are advised only where free cores exist."""
    command = ("python", "train.py", "--workers", "8")
    script = starved(events=phases(waiting=(44.0, 68)), cpu_utilisation=0.97, command=command)
    (advice,) = advise(store, written, CardScript(WAITS), **script)
    assert advice.command == ""
    assert "no CPU core is free" in advice.text and "workers" not in advice.text


def test_a_loader_that_was_ready_is_not_blamed(store: Store, written: Written) -> None:
    """Promise: pauses that the loader's waits do not explain are the program's own."""
    script = starved(events=phases(waiting=(2.0, 68)))
    (advice,) = advise(store, written, CardScript(WAITS), **script)
    assert advice.rule == "starved-loader"
    assert advice.title.startswith("The GPU waited for the host")
    assert "loss.item()" in advice.text


def test_rests_that_are_checkpoints_are_named_as_such(store: Store, written: Written) -> None:
    """Promise: pauses to write checkpoints are not also called waiting for data."""
    script = starved(events=phases(checkpoint=(45.0, 68)))
    assert rules(advise(store, written, CardScript(WAITS), **script)) == ["checkpoint-pauses"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "phases", "steps": 5, "phases": [{"name": "compilation", "colour": 1}]},
        {"type": "phases"},
        {"type": "phases", "steps": 5, "phases": [], "later": True},
    ],
)
def test_phases_of_another_version_are_ignored(
    store: Store, written: Written, event: dict[str, Any]
) -> None:
    """Promise: an event that cannot be read is never an error."""
    assert advise(store, written, events=[event]) == []


def lacks(store: Store, record: RunRecord) -> dict[str, str]:
    facts = read_facts(store, record)
    assert facts is not None
    return {one.rule: one.lacked for one in silent_rules(facts, advice_on(store, record))}


def test_silent_rules_say_what_they_lack(store: Store, written: Written) -> None:
    """Promise: without a GPU, without steps, or too short: each silent rule names the first one
    it lacks.
    """
    bare = lacks(store, written(run_id="bare", duration_s=LASTS_S))
    assert bare["idle-gpu"].startswith("no GPU was read")
    assert bare["compile-share"].startswith("wattloop run noticed no steps")
    short = lacks(store, written(busy(until_s=29.0), run_id="short", duration_s=30.0))
    assert short["compile-share"] == "the run is shorter than 60 s"
    assert (short["idle-gpu"], short["starved-loader"]) == ("", "")
    assert short["unbalanced-gpus"] == "only one GPU was read"
    assert short["fp32"].startswith("the precision is unknown")
    served = written(run_id="served", duration_s=LASTS_S, command=("vllm", "serve", "llama"))
    assert lacks(store, served)["compile-share"] == "the program answers requests or a person"
    trained = lacks(store, written(run_id="trained", duration_s=LASTS_S, events=phases()))
    assert trained["compile-share"] == trained["unused-cores"] == ""
