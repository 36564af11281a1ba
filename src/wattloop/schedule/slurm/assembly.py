"""Build the managed cluster from an operator's options."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.file import load_cluster
from wattloop.schedule.estimates.fleet_oracle import FleetOracle
from wattloop.schedule.estimates.history import History
from wattloop.schedule.estimates.job_estimator import JobEstimator
from wattloop.schedule.estimates.rules import Rules, load_rules
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.managed_cluster import Believed, ManagedCluster, shared_partitions
from wattloop.schedule.slurm.nodes import SlurmNode, known_nodes
from wattloop.schedule.slurm.scontrol import SlurmClient
from wattloop.schedule.step_function import StepFunction, StepsError, budget_steps

CAPS = (1.0, 0.9, 0.8, 0.7, 0.6)
"""Default caps as shares of TDP, for policies that set caps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRequest:
    """Operator's options for a managed cluster.

    Attributes:
        partitions: managed partitions; empty selects Slurm's only partition.
        cluster: YAML file with the power of GPUs and hosts; None uses the hardware table.
        gpus_only: leave hosts out of the power.
        mapping: YAML file with rules that map jobs to models.
        oracle: `analytic`, `table`, or the `oracle` section of a scenario.
        budget: `4500 W`; None for no budget.
        caps: power caps as shares of TDP.
        store: `Store` with past runs, or None.
    """

    partitions: tuple[str, ...] = ()
    cluster: str | None = None
    gpus_only: bool = False
    mapping: str | None = None
    oracle: Any = "analytic"
    budget: Any = None
    caps: tuple[float, ...] = CAPS
    store: Any = field(default=None, repr=False)


def site_from(client: SlurmClient, request: SiteRequest, policy: Policy) -> ManagedCluster:
    """Query Slurm's nodes and build the managed cluster.

    Raises:
        ConfigError: an option is invalid.
        SlurmError: Slurm does not answer.
    """
    return site_of_nodes(client.nodes(), request, policy)


def site_of_nodes(
    nodes: Sequence[SlurmNode], request: SiteRequest, policy: Policy
) -> ManagedCluster:
    """Build the managed cluster from Slurm's current nodes.

    Raises:
        ConfigError: an option is invalid.
    """
    partitions = request.partitions or _only_partition([p for n in nodes for p in n.partitions])
    described = load_cluster(request.cluster) if request.cluster is not None else None
    known = known_nodes(nodes, partitions, described=described, count_hosts=not request.gpus_only)
    oracle = FleetOracle.of(known.cluster, _oracle_spec(request.oracle))
    describer = JobEstimator(
        oracle,
        rules=load_rules(request.mapping) if request.mapping is not None else Rules(),
        history=History(request.store) if request.store is not None else None,
        wait_s=0.0,  # a job waits until its model is predicted, a round does not
    )
    caps = request.caps if policy.sets_caps else (1.0,)
    return ManagedCluster(
        known=known,
        managed=tuple(partitions),
        shared=shared_partitions(nodes, known, partitions),
        believed=Believed(describer, known.cluster, caps),
        oracle=oracle,
        budget_w=_budget(request.budget, known.cluster),
    )


def _only_partition(names: Sequence[str]) -> tuple[str, ...]:
    found = sorted(set(names))
    if len(found) != 1:
        raise ConfigError(f"Slurm has partitions {', '.join(found)}; say which with --partition")
    return (found[0],)


def _oracle_spec(given: Any) -> OracleSpec:
    try:
        return OracleSpec.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"oracle: {error.errors()[0]['msg']}") from None


def _budget(given: Any, cluster: Cluster) -> StepFunction:
    if given is None:
        return StepFunction.constant(float("inf"))
    try:
        found = budget_steps(given).steps
    except (StepsError, ValueError) as error:
        raise ConfigError(f"budget: {error}") from None
    if not min(found.values) > cluster.idle_w:
        raise ConfigError(
            f"budget: {min(found.values):g} W is not above the {cluster.idle_w:.0f} W that the "
            "nodes draw with nothing to do; no job could ever start (--gpus-only counts no hosts)"
        )
    return found
