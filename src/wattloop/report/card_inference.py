"""What one inference takes, found by running a command that does many.

A program spends time and energy before its first inference. Where the command says with `{n}` how
many to do, it is run with two numbers and only the difference counts:

    e = (E(n2) - E(n1)) / (n2 - n1)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattloop.check.command import printing_aside
from wattloop.core.errors import CommandError, ConfigError
from wattloop.core.records import Provenance
from wattloop.core.settings import Settings
from wattloop.measure.command import run_command
from wattloop.measure.run_result import RunResult

__all__ = ["Inference", "measured_inference"]

PLACE = "{n}"
FEW = 10
"""The first of the two executions does a tenth of the inferences."""
CLEARLY = 0.1
"""Starting a program twice differs by some percent: what many inferences add must be more."""
MODELS = ("modelled", "estimated")
WHOLE = "with the start of the program"


@dataclass(frozen=True, slots=True)
class Inference:
    """Energy and time of one inference; None with `reason` where they cannot be told.

    `node_energy_j` has the rest of the node with it, modelled where nobody measures it.
    """

    inferences: int
    energy_j: float | None
    uncertainty_j: float
    latency_s: float | None
    provenance: str
    method: str
    command: tuple[str, ...]
    reason: str = ""
    notes: tuple[str, ...] = ()
    node_energy_j: float | None = None


def measured_inference(
    command: Sequence[str],
    inferences: int,
    settings: Settings,
    told: Callable[[str], None] | None = None,
) -> Inference:
    """Run `command`, which does `inferences` inferences, or as many as it is told by `{n}`.

    Raises:
        ConfigError: the command cannot be started, or failed.
    """
    if not any(PLACE in word for word in command) or inferences < 2:
        run = _ran(command, settings, told)
        return _of_whole(run, inferences, tuple(command))
    few = max(1, inferences // FEW)
    first = _ran([word.replace(PLACE, str(few)) for word in command], settings, told)
    second = _ran([word.replace(PLACE, str(inferences)) for word in command], settings, told)
    return _of_difference(first, second, few, inferences, tuple(command))


def _of_whole(run: RunResult, n: int, command: tuple[str, ...]) -> Inference:
    result = run.result
    note = f"write {PLACE} in the command of the inferences to have its start taken off"
    return Inference(
        inferences=n,
        energy_j=None if run.energy_j is None else run.energy_j / n,
        uncertainty_j=result.uncertainty_j / n,
        latency_s=result.duration_s / n,
        provenance="" if result.provenance is None else result.provenance.value,
        method=WHOLE,
        command=command,
        reason=_why(run),
        node_energy_j=None if (node_j := _node_j(run)) is None else node_j / n,
        notes=(*(() if PLACE in " ".join(command) else (note,)), *result.warnings),
    )


def _of_difference(
    first: RunResult, second: RunResult, few: int, many: int, command: tuple[str, ...]
) -> Inference:
    more = many - few
    found = replace(
        _of_whole(second, many, command),
        inferences=more,
        energy_j=None,
        node_energy_j=None,
        latency_s=None,
        method="start of the program taken off",
        reason=f"{many} inferences cannot be told from {few}; ask for more with --inferences",
    )
    longer_s = second.result.duration_s - first.result.duration_s
    if longer_s < CLEARLY * first.result.duration_s:
        return found
    found = replace(found, latency_s=longer_s / more)
    if first.energy_j is None or second.energy_j is None:
        return replace(found, reason=_why(second) or _why(first))
    more_j = second.energy_j - first.energy_j
    doubt_j = math.hypot(_random_j(first), _random_j(second))
    if more_j <= max(doubt_j, CLEARLY * first.energy_j):
        return found
    kinds = [r.result.provenance for r in (first, second) if r.result.provenance is not None]
    first_node_j, second_node_j = _node_j(first), _node_j(second)
    node_j = (
        None
        if first_node_j is None or second_node_j is None
        else (second_node_j - first_node_j) / more
    )
    return replace(
        found,
        energy_j=more_j / more,
        node_energy_j=node_j,
        uncertainty_j=math.hypot(doubt_j, _systematic(second) * more_j) / more,
        provenance=Provenance.weakest(kinds).value,
        reason="",
    )


def _node_j(run: RunResult) -> float | None:
    node: dict[str, float | None] = run.accounting.get("node") or {}
    return node.get("energy_j")


def _random_j(run: RunResult) -> float:
    """Uncertainty that differs from run to run: of sensors, not of models."""
    sensed = [d for d in run.result.counted if d.provenance.value not in MODELS]
    return math.hypot(*(d.uncertainty_j for d in sensed))


def _systematic(run: RunResult) -> float:
    """Share by which models and estimates are off, the same way in both runs."""
    energy_j = run.result.energy_j or 0.0
    modelled = [d for d in run.result.counted if d.provenance.value in MODELS]
    off_j = math.hypot(*(d.uncertainty_j for d in modelled))
    return off_j / energy_j if energy_j else 0.0


def _why(run: RunResult) -> str:
    if run.energy_j is not None:
        return ""
    return "; ".join(f"{m.name}: {m.reason}" for m in run.missing) or "nothing could be read"


def _ran(
    command: Sequence[str], settings: Settings, told: Callable[[str], None] | None
) -> RunResult:
    if told is not None:
        told(" ".join(command))
    try:
        with printing_aside():
            done = run_command(command, settings, tags={"card": "inference"})
    except CommandError as error:
        raise ConfigError(f"--inference: {error}") from None
    if done.outcome.exit_code != 0:
        raise ConfigError(
            f"--inference: {command[0]} failed with exit code {done.outcome.exit_code}; make it "
            "succeed first"
        )
    if done.run is None:
        raise ConfigError(f"--inference: {'; '.join(done.warnings)}")
    return done.run
