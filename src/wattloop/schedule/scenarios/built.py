"""From what people write to a scenario: clusters by name, values over the day, policies known."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import Fault, nearest, validation_errors
from wattloop.schedule.cluster.built import built as built_cluster
from wattloop.schedule.cluster.built import failures_of
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import load_cluster
from wattloop.schedule.cluster.spec import ClusterSpec
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.scenario import Scenario, budget_fault
from wattloop.schedule.scenarios.spec import ScenarioSpec
from wattloop.schedule.steps_file import (
    StepsError,
    Written,
    budget_steps,
    carbon_steps,
    clock_s,
    price_steps,
)

__all__ = ["built"]


def built(
    spec: ScenarioSpec, *, name: str, folder: Path | None
) -> tuple[Scenario | None, list[Fault]]:
    """The scenario without its variants, or what is wrong with its description.

    Files are looked for in `folder`, the scenario's own.
    """
    reader = _Reader(spec, name, folder)
    return reader.scenario(), reader.faults


class _Reader:
    """The parts of a scenario that fields alone do not make, with all their faults."""

    def __init__(self, spec: ScenarioSpec, name: str, folder: Path | None) -> None:
        self.spec = spec
        self.name = spec.name or name
        self.folder = folder
        self.faults: list[Fault] = []

    def scenario(self) -> Scenario | None:
        """The scenario; None when there are faults."""
        spec = self.spec
        cluster = self._cluster()
        starts_at_s = self._starts_at_s()
        steps = {
            "budget": self._steps("budget", budget_steps),
            "price": self._steps("price", price_steps),
            "carbon": self._steps("carbon", carbon_steps),
        }
        self._check_policies()
        if cluster is not None:
            self._check_types(cluster)
        if cluster is None or self.faults:
            return None
        fault = budget_fault(steps["budget"], cluster)
        if fault:
            self.faults.append((("budget",), fault))
            return None
        return Scenario(
            name=self.name,
            description=spec.description,
            cluster=cluster,
            jobs=spec.jobs if self.folder is None else spec.jobs.located(self.folder),
            oracle=spec.oracle if self.folder is None else spec.oracle.located(self.folder),
            engine=spec.engine,
            budget=steps["budget"],
            price=steps["price"],
            carbon=steps["carbon"],
            starts_at_s=starts_at_s,
            policies=tuple(spec.policies),
            seeds=tuple(spec.seeds),
        )

    def _cluster(self) -> Cluster | None:
        given = self.spec.cluster
        try:
            cluster = self._inline(given) if isinstance(given, dict) else self._named(given)
        except ConfigError as error:
            self.faults.append((("cluster",), str(error)))
            return None
        failures = self.spec.engine.failures
        if cluster is None or failures is None:
            return cluster
        found, faults = failures_of(failures, cluster, ("engine", "failures"))
        self.faults += faults
        return cluster.with_failures(found)

    def _named(self, text: str) -> Cluster:
        beside = None if self.folder is None else self.folder / text
        return load_cluster(str(beside) if beside is not None and beside.is_file() else text)

    def _inline(self, data: Mapping[str, Any]) -> Cluster | None:
        try:
            spec = ClusterSpec.model_validate(data)
        except ValidationError as error:
            faults = validation_errors(error, ClusterSpec)
            self.faults += [(("cluster", *place), message) for place, message in faults]
            return None
        cluster, faults = built_cluster(spec, name=self.name.partition("/")[0], folder=self.folder)
        self.faults += [(("cluster", *place), message) for place, message in faults]
        return cluster

    def _starts_at_s(self) -> float:
        if self.spec.starts_at is None:
            return 0.0
        try:
            return clock_s(self.spec.starts_at)
        except StepsError as error:
            self.faults.append((("starts_at",), str(error)))
            return 0.0

    def _check_policies(self) -> None:
        names = set()
        for number, given in enumerate(self.spec.policies):
            try:
                name = policy_from(given).name
            except ConfigError as error:
                self.faults.append((("policies", number), str(error)))
                continue
            if name in names:
                self.faults.append((("policies", number), f"{name} is given twice; keep one"))
            names.add(name)

    def _check_types(self, cluster: Cluster) -> None:
        """Jobs that ask for GPUs nobody has would wait for ever."""
        known = [kind.name for kind in cluster.types]
        for number, model in enumerate(self.spec.jobs.models):
            for name in model.types:
                if name not in known:
                    said = (
                        f"cluster {cluster.name} has no GPU type '{name}'; {nearest(name, known)}"
                    )
                    self.faults.append((("jobs", "models", number, "types"), said))

    def _steps(self, name: str, read: Callable[[Any, Path | None], Written]) -> Written | None:
        value = getattr(self.spec, name)
        if value is None:
            return None
        try:
            return read(value, self.folder)
        except StepsError as error:
            self.faults.append(((name, *error.place), str(error)))
            return None
