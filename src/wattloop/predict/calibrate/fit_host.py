"""What the host needs for calls, from the host records of a collection."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.predict.models.kernels.values import Values

__all__ = ["with_host"]

MODES = {"forward": "host.call_s.forward", "backward": "host.call_s.backward"}


def with_host(values: Values, rows: Sequence[Mapping[str, Any]]) -> Values:
    """`values` with the median call by phase, the cost of a tensor in a list, of a module."""
    changes: dict[str, float] = {}
    for mode, name in MODES.items():
        found = [
            float(row["seconds"]) for row in rows
            if row["family"] == "call" and row["params"].get("mode") == mode and row.get("seconds")
        ]  # fmt: skip
        if found:
            changes[name] = max(statistics.median(found) - values["host.launch_s"], 5e-7)
    lists = [
        (int(row["params"]["tensors"]), float(row["seconds"])) for row in rows
        if row["family"] == "optimizer" and row["params"].get("optimizer") == "adamw"
        and row["params"].get("style") == "foreach" and row.get("seconds")
    ]  # fmt: skip
    if len(lists) >= 2:
        (few, short_s), (many, long_s) = min(lists), max(lists)
        # AdamW walks its lists about 12 times, and the host each tensor of them.
        changes["host.tensor_s"] = max((long_s - short_s) / (many - few) / 12, 1e-8)
    module = [
        float(row["seconds"]) for row in rows
        if row["family"] == "module" and row["params"].get("module") == "identity"
    ]  # fmt: skip
    if module:
        changes["host.module_s"] = statistics.median(module)
    return values.with_changes(changes)
