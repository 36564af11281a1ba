"""Scenario restored from the plain data of the store."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs.spec import JobsSpec
from wattloop.schedule.scenarios.scenario import Scenario
from wattloop.schedule.scenarios.spec import EngineSpec
from wattloop.schedule.step_function import StepFunction, Written


def stored_scenario(kept: Mapping[str, Any]) -> Scenario:
    """Invert `Scenario.to_dict`, without default policies and seeds.

    Raises:
        ConfigError: stored by a release whose scenarios had other fields.
    """
    try:
        return Scenario(
            name=str(kept["name"]),
            description=str(kept["description"]),
            cluster=TypeAdapter(Cluster).validate_python(kept["cluster"]),
            jobs=JobsSpec.model_validate(kept["jobs"]),
            oracle=OracleSpec.model_validate(kept["oracle"]),
            engine=EngineSpec.model_validate(kept["engine"]),
            budget=_written(kept.get("budget")),
            price=_written(kept.get("price")),
            carbon=_written(kept.get("carbon")),
            starts_at_s=float(kept.get("starts_at_s") or 0.0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this scenario was kept by another release and cannot be simulated again: {error}"
        ) from None


def _written(kept: Mapping[str, Any] | None) -> Written | None:
    if kept is None:
        return None
    period_s = kept.get("period_s")
    steps = StepFunction(
        tuple(kept["times_s"]),
        tuple(kept["values"]),
        math.inf if period_s is None else float(period_s),
    )
    return Written(steps, str(kept.get("source") or ""))
