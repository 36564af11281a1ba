"""Facts that rules need, and the reason for silence where a run lacks them."""

from collections.abc import Callable
from typing import NamedTuple

from wattloop.advise.facts import LONG_RUN_S, RunFacts

SHORTEST_S = 10.0
"""Rules say nothing about shorter runs: they are mostly the start of a program."""


class Need(NamedTuple):
    """A condition on the facts of a run, and the reason given where they do not meet it."""

    lacked: str
    is_met: Callable[[RunFacts], bool]


def _has_signals(facts: RunFacts, *names: str) -> bool:
    return any(all(name in gpu.signals for name in names) for gpu in facts.used_gpus)


LENGTH = Need(
    f"the run is shorter than {SHORTEST_S:g} s", lambda facts: facts.duration_s >= SHORTEST_S
)
PHASE_LENGTH = Need(
    f"the run is shorter than {LONG_RUN_S:g} s", lambda facts: facts.duration_s >= LONG_RUN_S
)
OWN_PACE = Need(
    "the program answers requests or a person", lambda facts: not facts.waits_on_purpose
)
GPU = Need("no readings of a GPU with a known power limit", lambda facts: bool(facts.gpus))
GPU_WORK = Need("no GPU had work", lambda facts: facts.working is not None)
SECOND_GPU = Need("only one GPU was read", lambda facts: len(facts.gpus) > 1)
UTILISATION = Need(
    "utilisation and memory utilisation of the GPU were not read",
    lambda facts: _has_signals(facts, "utilisation", "memory_utilisation"),
)
CAP_EVIDENCE = Need(
    "no sweep or cap search of this command, and utilisation, memory utilisation or clock of the "
    "GPU were not read",
    lambda facts: (
        bool(facts.tried) or _has_signals(facts, "utilisation", "memory_utilisation", "sm_clock")
    ),
)
PRECISION = Need(
    "the precision is unknown (record it with --tag precision=bf16)",
    lambda facts: facts.precision is not None,
)
CARBON = Need(
    "no series of carbon intensities (setting carbon_file)",
    lambda facts: bool(facts.settings.carbon_file),
)
IDLE_LINE = Need(
    "no idle line of the machine (wattloop idle), or no later run on it",
    lambda facts: facts.node is not None,
)
STEPS = Need(
    "wattloop run noticed no steps and phases (docs/run.md says in which programs it does)",
    lambda facts: facts.totals is not None and facts.totals.steps > 0,
)
CPU_UTILISATION = Need(
    "the utilisation of the CPU was not read",
    lambda facts: facts.cpu_utilisation(facts.whole) is not None,
)
