"""What trains in a search: a command, a function, or a bench of one's own."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.tune.bench import Bench, BenchParts
from wattloop.tune.device_groups import device_groups
from wattloop.tune.engines.ray_words import slots_asked
from wattloop.tune.problem import Problem
from wattloop.tune.search_record import SearchRecord
from wattloop.tune.spec import SearchSpec
from wattloop.tune.trial import Trial

__all__ = ["COMMAND", "Function", "Maker", "Training", "bench_for"]

Function = Callable[[Trial], Any]
Maker = Callable[[BenchParts], Bench]


@dataclass(frozen=True, slots=True)
class Training:
    """What trains, where that is not the command of a specification."""

    function: Function | None = None
    bench: Maker | None = None

    @property
    def name(self) -> str:
        """The function's name, or that of what makes the bench; empty for a command."""
        own = self.function or self.bench
        if own is None:
            return ""
        module = getattr(own, "__module__", "") or ""
        return f"{module}.{getattr(own, '__qualname__', type(own).__name__)}"


COMMAND = Training()
"""The command of the specification."""


def bench_for(
    spec: SearchSpec,
    problem: Problem,
    settings: Settings,
    record: SearchRecord,
    training: Training,
) -> Bench:
    """What trains: a bench of one's own, the function, or the specification's command."""
    facts = record.experiment.facts
    parts = BenchParts(
        problem=problem,
        settings=settings,
        folder=record.folder,
        tags=record.tags,
        scope=facts.get("scope") or spec.scope,
        search_id=record.search_id,
    )
    if training.bench is not None:
        return training.bench(parts)
    parallel = facts.get("parallel")
    if parallel is None:
        return _plain_bench(spec, training.function, parts, settings)
    from wattloop.tune.parallel_bench import ParallelBench

    if spec.scope not in (None, ParallelBench.scope):
        raise ConfigError(
            f"scope {spec.scope}: trainings side by side can only be told apart by the energy of "
            "their GPUs; leave out scope, or run one at a time"
        )
    own = replace(parts, scope=ParallelBench.scope)
    make = functools.partial(_plain_bench, spec, training.function, own)
    asked = slots_asked(str(parallel))
    if asked is not None:
        from wattloop.tune.engines.ray_bench import RayBench

        return RayBench(make, settings, slots=asked[0], gpus=asked[1])
    return ParallelBench(make, settings, device_groups(parallel))


def _plain_bench(
    spec: SearchSpec, function: Function | None, parts: BenchParts, settings: Settings
) -> Bench:
    """One training at a time, in this process; `settings` are those of its devices."""
    options: dict[str, Any] = {"folder": parts.folder, "tags": parts.tags, "scope": parts.scope}
    if function is not None:
        from wattloop.tune.function_bench import FunctionBench

        return FunctionBench(function, parts.problem, settings, **options)
    from wattloop.tune.command_bench import CommandBench

    return CommandBench(
        spec.command,
        parts.problem,
        settings,
        search_id=parts.search_id,
        checkpoint=spec.checkpoint,
        metrics_file=spec.metrics_file,
        **options,
    )
