"""All rules applied to one run, the best advice first, and reasons for silence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from wattloop.advise.advice import Advice
from wattloop.advise.facts import LONG_RUN_S, RunFacts, read_facts
from wattloop.advise.rules.cap_too_high import cap_too_high
from wattloop.advise.rules.carbon_hour import carbon_hour
from wattloop.advise.rules.fp32 import fp32
from wattloop.advise.rules.idle import idle_gpu, idle_node, idle_tail
from wattloop.advise.rules.launch_bound import launch_bound
from wattloop.advise.rules.phases import (
    checkpoint_pauses,
    compile_share,
    evaluation_share,
    startup_share,
    unused_cores,
)
from wattloop.advise.rules.starved_loader import starved_loader
from wattloop.advise.rules.unbalanced_gpus import unbalanced_gpus
from wattloop.core.records import Provenance, Scope
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord

SHORTEST_S = 10.0
"""Rules say nothing about shorter runs: they are mostly the start of a program."""


class Need(NamedTuple):
    """A condition on the facts of a run, and the reason given where they do not meet it."""

    lacked: str | Callable[[RunFacts], str]
    is_met: Callable[[RunFacts], bool]

    def reason(self, facts: RunFacts) -> str:
        return self.lacked if isinstance(self.lacked, str) else self.lacked(facts)


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


def _without_gpu(facts: RunFacts) -> str:
    result = facts.record.result
    gpus = () if result is None else result.scope_domains(Scope.GPU)
    if not gpus:
        return "no GPU was read"
    if all(gpu.tdp_w is None for gpu in gpus):
        return "the power limit of its GPU is not known"
    return "the readings of its GPU over time are not stored, only its energy"


GPU = Need(_without_gpu, lambda facts: bool(facts.gpus))
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
    "the idle power of this machine is unknown (run wattloop idle), or no later run is known",
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


class AdviceRule(NamedTuple):
    """A rule, and the facts without which it says nothing."""

    judge: Callable[[RunFacts], Advice | None]
    needs: tuple[Need, ...]


class SilentRule(NamedTuple):
    """A rule without advice, and what it lacked; empty where it found nothing wrong."""

    rule: str
    lacked: str


_GPU_WORK = (LENGTH, GPU, GPU_WORK)
_PHASES = (PHASE_LENGTH, OWN_PACE, STEPS)
RULES: dict[str, AdviceRule] = {
    "idle-gpu": AdviceRule(idle_gpu, (LENGTH, GPU, OWN_PACE)),
    "unbalanced-gpus": AdviceRule(unbalanced_gpus, (*_GPU_WORK, SECOND_GPU)),
    "starved-loader": AdviceRule(starved_loader, (*_GPU_WORK, OWN_PACE)),
    "launch-bound": AdviceRule(launch_bound, (*_GPU_WORK, UTILISATION)),
    "idle-tail": AdviceRule(idle_tail, _GPU_WORK),
    "cap-too-high": AdviceRule(cap_too_high, (*_GPU_WORK, CAP_EVIDENCE)),
    "fp32": AdviceRule(fp32, (*_GPU_WORK, PRECISION)),
    "compile-share": AdviceRule(compile_share, _PHASES),
    "startup-share": AdviceRule(startup_share, _PHASES),
    "evaluation-share": AdviceRule(evaluation_share, _PHASES),
    "checkpoint-pauses": AdviceRule(checkpoint_pauses, _PHASES),
    "unused-cores": AdviceRule(unused_cores, (*_PHASES, CPU_UTILISATION)),
    "carbon-hour": AdviceRule(carbon_hour, (CARBON,)),
    "idle-node": AdviceRule(idle_node, (IDLE_LINE,)),
}
"""Name -> rule."""
BESIDE_THE_RUN = ("carbon-hour", "idle-node")
"""These change nothing in the run itself, and come after those that do."""
WORTH_SAYING = 0.01
"""Of the run's energy."""


def advise(facts: RunFacts) -> list[Advice]:
    """Return advice on a run by expected saving; empty without any."""
    found = [advice for rule in RULES.values() if (advice := rule.judge(facts)) is not None]
    worth = [_marked(one, facts) for one in found if one.saving_share >= WORTH_SAYING]
    return sorted(worth, key=lambda a: (a.rule in BESIDE_THE_RUN, -a.saving_share))


def silent_rules(facts: RunFacts, found: Sequence[Advice]) -> list[SilentRule]:
    """Return the rules that gave none of the advice, each with the first thing that it lacked."""
    spoke = {advice.rule for advice in found}
    silent = []
    for name, rule in RULES.items():
        if name not in spoke:
            lacked = (need.reason(facts) for need in rule.needs if not need.is_met(facts))
            silent.append(SilentRule(name, next(lacked, "")))
    return silent


def noticed(record: RunRecord) -> list[str]:
    """Return what was noticed when the run ended, from energies alone."""
    insights = (record.accounting or {}).get("insights") or ()
    return [str(one.get("text")) for one in insights if one.get("code") in WASTE]


WASTE = ("low_efficiency", "cpu_underload", "gpu_underload", "gpu_imbalance", "node_imbalance")
"""Insights that say that devices waited."""


def advice_on(store: Store, record: RunRecord, settings: Settings | None = None) -> list[Advice]:
    """Return advice on a stored run; empty while it runs, or when nothing was measured."""
    facts = read_facts(store, record, settings)
    return [] if facts is None else advise(facts)


def _marked(advice: Advice, facts: RunFacts) -> Advice:
    result = facts.record.result
    gpus = () if result is None else result.scope_domains(Scope.GPU)
    kinds = sorted({d.provenance.value for d in gpus} - {Provenance.MEASURED.value})
    said = all(kind in advice.source for kind in kinds)
    if said or advice.rule in BESIDE_THE_RUN:
        return advice
    return replace(advice, source=f"{advice.source} (readings {', '.join(kinds)})")
