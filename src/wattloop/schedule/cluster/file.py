"""Clusters from YAML files, and those that are shipped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import (
    YamlWithLines,
    format_errors,
    nearest,
    read_yaml,
    validation_errors,
)
from wattloop.schedule.cluster.built import built
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.cluster.spec import ClusterSpec

__all__ = ["cluster_from", "load_cluster", "shipped_clusters"]

SHIPPED = Path(__file__).with_name("shipped")


def load_cluster(name: str) -> Cluster:
    """The cluster of a YAML file, or a shipped one by its name (docs/clusters.md).

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    path = name
    if not name.endswith((".yaml", ".yml")) and not Path(name).is_file():
        known = shipped_clusters()
        if name not in known:
            raise ConfigError(
                f"no cluster called {name!r}: {nearest(name, list(known))}; or give the path of a "
                "YAML file (docs/clusters.md)"
            )
        path = str(SHIPPED / f"{name}.yaml")
    source = read_yaml(path)
    if not source.data:
        raise ConfigError(f"{name}: is empty; a cluster has at least 'groups' (docs/clusters.md)")
    return cluster_from(source.data, source, name=Path(path).stem)


def shipped_clusters() -> dict[str, str]:
    """Names of the clusters that come with Wattloop, and what each is."""
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    return {name: read_yaml(str(SHIPPED / f"{name}.yaml")).data["description"] for name in names}


def cluster_from(
    data: Mapping[str, Any], source: YamlWithLines | None = None, *, name: str = "cluster"
) -> Cluster:
    """A cluster from plain data; `source` says on which lines its fields stand.

    Raises:
        ConfigError: one line per fault.
    """
    try:
        spec = ClusterSpec.model_validate(data)
    except ValidationError as error:
        faults = validation_errors(error, ClusterSpec)
        raise ConfigError(format_errors(faults, source, otherwise=name)) from None
    folder = None if source is None else Path(source.path).parent
    cluster, faults = built(spec, name=name, folder=folder)
    if cluster is None:
        raise ConfigError(format_errors(faults, source, otherwise=name))
    return cluster
