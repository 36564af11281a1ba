"""Fleet file: machines, oracle, and rules for jobs.

cluster: cluster.yaml      # or a shipped one by name, or its fields
oracle: analytic           # as in a scenario
rules: jobs.yaml           # optional
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError

from wattloop.core.errors import ConfigError
from wattloop.core.paths import user_path
from wattloop.core.yaml_spec import format_errors, read_yaml, validation_errors
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import cluster_from, load_cluster
from wattloop.schedule.estimates.fleet_oracle import FleetOracle
from wattloop.schedule.estimates.rules import Rules, load_rules
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.quantities import Strict


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines with their oracle and the operator's rules."""

    cluster: Cluster
    spec: OracleSpec
    rules: Rules = field(default_factory=Rules)

    def oracle(self) -> FleetOracle:
        """Return the oracle, shared by all callers in this process.

        Raises:
            ConfigError: a file that it needs is invalid.
        """
        return FleetOracle.of(self.cluster, self.spec, self.rules.workloads)


def load_fleet(name: str, mapping: str = "") -> Fleet:
    """Load a fleet from a fleet file, a cluster file, or the name of a shipped cluster.

    Args:
        name: file or name of the cluster.
        mapping: file of rules that replaces the one in the fleet file.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    rules = load_rules(mapping) if mapping else Rules()
    if not name.endswith((".yaml", ".yml")):
        return Fleet(load_cluster(name), OracleSpec(), rules)
    source = read_yaml(name)
    if "groups" in source.data:
        return Fleet(load_cluster(name), OracleSpec(), rules)
    try:
        spec = _FleetSpec.model_validate(source.data)
    except ValidationError as error:
        raise ConfigError(
            format_errors(validation_errors(error, _FleetSpec), source, otherwise=name)
        ) from None
    folder = user_path(name).parent
    cluster = (
        cluster_from(spec.cluster, name=Path(name).stem)
        if isinstance(spec.cluster, Mapping)
        else load_cluster(_resolved(spec.cluster, folder))
    )
    if spec.rules and not mapping:
        rules = load_rules(_resolved(spec.rules, folder))
    return Fleet(cluster, spec.oracle.located(folder), rules)


def _resolved(name: str, folder: Path) -> str:
    """Resolve a file relative to the folder of the fleet file; a name stays a name."""
    return str(folder / user_path(name)) if name.endswith((".yaml", ".yml")) else name


def _name_or_fields(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("write a name, a file, or 'key: value' lines")
    return value


class _FleetSpec(Strict):
    cluster: Annotated[str | dict[str, Any], BeforeValidator(_name_or_fields)]
    oracle: OracleSpec = OracleSpec()
    rules: str = ""
