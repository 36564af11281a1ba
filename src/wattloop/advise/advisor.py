"""All rules applied to one run, the best advice first."""

from collections.abc import Callable
from dataclasses import replace

from wattloop.advise.advice import Advice
from wattloop.advise.facts import RunFacts, read_facts
from wattloop.advise.rules.cap_too_high import cap_too_high
from wattloop.advise.rules.carbon_hour import carbon_hour
from wattloop.advise.rules.fp32 import fp32
from wattloop.advise.rules.idle_gpu import idle_gpu
from wattloop.advise.rules.idle_node import idle_node
from wattloop.advise.rules.idle_tail import idle_tail
from wattloop.advise.rules.launch_bound import launch_bound
from wattloop.advise.rules.starved_loader import starved_loader
from wattloop.advise.rules.unbalanced_gpus import unbalanced_gpus
from wattloop.core.records import Provenance, Scope
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.runs import RunRecord

Rule = Callable[[RunFacts], Advice | None]

RULES: dict[str, Rule] = {
    "idle-gpu": idle_gpu,
    "unbalanced-gpus": unbalanced_gpus,
    "starved-loader": starved_loader,
    "launch-bound": launch_bound,
    "idle-tail": idle_tail,
    "cap-too-high": cap_too_high,
    "fp32": fp32,
    "carbon-hour": carbon_hour,
    "idle-node": idle_node,
}
"""Name -> rule."""

BESIDE_THE_RUN = ("carbon-hour", "idle-node")
"""These change nothing in the run itself, and come after those that do."""
WORTH_SAYING = 0.01
"""Of the run's energy."""


def advise(facts: RunFacts) -> list[Advice]:
    """Return advice on a run by expected saving; empty without any."""
    found = [advice for rule in RULES.values() if (advice := rule(facts)) is not None]
    worth = [_marked(one, facts) for one in found if one.saving_share >= WORTH_SAYING]
    return sorted(worth, key=lambda a: (a.rule in BESIDE_THE_RUN, -a.saving_share))


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
