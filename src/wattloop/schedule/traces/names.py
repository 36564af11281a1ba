"""Mapping of a trace's model and GPU type names to templates and cluster types."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobTemplate
from wattloop.schedule.traces.trace import Coded

Codes = NDArray[np.int32]


def known_models(words: Coded, templates: Sequence[JobTemplate]) -> Codes:
    """Return the template of each row's model; -1 for unknown models."""
    names: dict[str, int] = {}
    for number, template in enumerate(templates):
        model = template.kind.model
        for name in (*template.called, model, model.rpartition("/")[2], model.rpartition(":")[2]):
            names.setdefault(_plain(name), number)
    return _translated(words, [names.get(_plain(word), -1) for word in words.values])


def known_types(
    words: Coded, cluster: Cluster, renamed: Mapping[str, str], source: str, *, strict: bool
) -> Codes:
    """Return the cluster's GPU type (index) of each row; -1 for unknown ones.

    Args:
        words: the column.
        cluster: cluster with the types.
        renamed: word of the trace -> GPU type of the cluster.
        source: the file, for messages.
        strict: a type that the cluster does not have is an error.

    Raises:
        ConfigError: an unknown type; names those of the cluster.
    """
    types: dict[str, int] = {}
    for number, each in enumerate(cluster.types):
        for name in (each.name, each.gpu.name, each.gpu.product, *each.gpu.aliases):
            types.setdefault(_plain(name), number)
    own = [each.name for each in cluster.types]
    for word, name in renamed.items():
        if name not in own:
            raise ConfigError(
                f"gpu_types: {word}: the cluster has no type '{name}', only {', '.join(own)}"
            )
        types[_plain(word)] = own.index(name)
    found = [types.get(_plain(word), -1) for word in words.values]
    if strict and -1 in found:
        word = words.values[found.index(-1)]
        rows = int(np.sum(words.codes == words.values.index(word)))
        raise ConfigError(
            f"{source}: GPU type '{word}' ({rows} jobs) is not in the cluster, which has "
            f"{', '.join(own)}. Say which stands for it (jobs.trace.gpu_types.{word}={own[0]}), "
            "or let jobs run on any (jobs.trace.gpu_types=any)"
        )
    return _translated(words, found)


def _translated(words: Coded, found: Sequence[int]) -> Codes:
    return np.array([*found, -1], np.int32)[words.codes]


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())
