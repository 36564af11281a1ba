"""All rules applied to one run, the best advice first."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from wattloop.advise import needs
from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts, read_facts
from wattloop.advise.needs import Need
from wattloop.advise.rules.cap_too_high import cap_too_high
from wattloop.advise.rules.carbon_hour import carbon_hour
from wattloop.advise.rules.checkpoint_pauses import checkpoint_pauses
from wattloop.advise.rules.compile_share import compile_share
from wattloop.advise.rules.evaluation_share import evaluation_share
from wattloop.advise.rules.fp32 import fp32
from wattloop.advise.rules.idle_gpu import idle_gpu
from wattloop.advise.rules.idle_node import idle_node
from wattloop.advise.rules.idle_tail import idle_tail
from wattloop.advise.rules.launch_bound import launch_bound
from wattloop.advise.rules.startup_share import startup_share
from wattloop.advise.rules.starved_loader import starved_loader
from wattloop.advise.rules.unbalanced_gpus import unbalanced_gpus
from wattloop.advise.rules.unused_cores import unused_cores
from wattloop.core.records import Provenance, Scope
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord


class AdviceRule(NamedTuple):
    """A rule, and the facts without which it says nothing."""

    judge: Callable[[RunFacts], Advice | None]
    needs: tuple[Need, ...]


class SilentRule(NamedTuple):
    """A rule without advice, and what it lacked; empty where it found nothing wrong."""

    rule: str
    lacked: str


_GPU_WORK = (needs.LENGTH, needs.GPU, needs.GPU_WORK)
_PHASES = (needs.PHASE_LENGTH, needs.OWN_PACE, needs.STEPS)

RULES: dict[str, AdviceRule] = {
    "idle-gpu": AdviceRule(idle_gpu, (needs.LENGTH, needs.GPU, needs.OWN_PACE)),
    "unbalanced-gpus": AdviceRule(unbalanced_gpus, (*_GPU_WORK, needs.SECOND_GPU)),
    "starved-loader": AdviceRule(starved_loader, (*_GPU_WORK, needs.OWN_PACE)),
    "launch-bound": AdviceRule(launch_bound, (*_GPU_WORK, needs.UTILISATION)),
    "idle-tail": AdviceRule(idle_tail, _GPU_WORK),
    "cap-too-high": AdviceRule(cap_too_high, (*_GPU_WORK, needs.CAP_EVIDENCE)),
    "fp32": AdviceRule(fp32, (*_GPU_WORK, needs.PRECISION)),
    "compile-share": AdviceRule(compile_share, _PHASES),
    "startup-share": AdviceRule(startup_share, _PHASES),
    "evaluation-share": AdviceRule(evaluation_share, _PHASES),
    "checkpoint-pauses": AdviceRule(checkpoint_pauses, _PHASES),
    "unused-cores": AdviceRule(unused_cores, (*_PHASES, needs.CPU_UTILISATION)),
    "carbon-hour": AdviceRule(carbon_hour, (needs.CARBON,)),
    "idle-node": AdviceRule(idle_node, (needs.IDLE_LINE,)),
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
            lacked = (need.lacked for need in rule.needs if not need.is_met(facts))
            silent.append(SilentRule(name, next(lacked, "")))
    return silent


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
