"""What the host needs for calls, from the records of a collection."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.predict.calibrate.fit_cases import operations_of
from wattloop.predict.models.kernels.host import of_operation
from wattloop.predict.models.kernels.values import Values

__all__ = ["with_host"]

KINDS: Mapping[str, str] = {
    "linear": "gemm", "bmm": "gemm", "add": "elementwise", "relu": "elementwise",
    "gelu": "elementwise", "view": "view", "transpose": "view", "layer_norm": "norm",
    "batch_norm": "norm", "conv": "conv", "softmax": "softmax", "dropout": "random",
    "sdpa": "attention", "embedding": "embedding", "cat": "copy", "contiguous": "copy",
    "to_bf16": "copy", "mean": "reduction", "max_pool": "pool",
}  # fmt: skip
"""Function of a host record -> kind of operation."""
PASSES = 12
"""Walks of a foreach AdamW over its lists, each of which costs the host every tensor once."""
LEAST_S = 5e-7


def with_host(values: Values, rows: Sequence[Mapping[str, Any]]) -> Values:
    """`values` with costs of calls by kind, of a tensor in a list, of a module, of RNN kernels.

    Backward calls are what autograd's engine adds to the functions' own; a record of one function
    alone pays for starting the engine, so they stay as the defaults have them, scaled like the
    forward calls.
    """
    hosts = [row for row in rows if row["record"] == "host"]
    calls: dict[str, list[float]] = defaultdict(list)
    for row in hosts:
        params = row["params"]
        if row["family"] == "call" and params.get("mode") in ("forward", "autocast"):
            calls[KINDS.get(params["function"], "elementwise")].append(float(row["seconds"]))
    changes = {
        f"host.call_s.forward.{kind}": statistics.median(found) for kind, found in calls.items()
    }
    if changes:
        changes["host.call_s.forward"] = statistics.median(changes.values())
        ratio = changes["host.call_s.forward"] / values["host.call_s.forward"]
        for name, value in values.numbers.items():
            if name.startswith(("host.call_s.backward", "host.call_s.optimizer")):
                changes[name] = ratio * value
    module = [
        float(row["seconds"]) for row in hosts
        if row["family"] == "module" and row["params"].get("module") == "identity"
    ]  # fmt: skip
    if module:
        changes["host.module_s"] = max(statistics.median(module), LEAST_S)
    return values.with_changes({**changes, **_lists(hosts), **_recurrent(rows)})


def _lists(hosts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    times = [
        (int(row["params"]["tensors"]), float(row["seconds"])) for row in hosts
        if row["family"] == "optimizer" and row["params"].get("optimizer") == "adamw"
        and row["params"].get("style") == "foreach"
    ]  # fmt: skip
    if len(times) < 2:
        return {}
    (few, short_s), (many, long_s) = min(times), max(times)
    return {"host.tensor_s": max((long_s - short_s) / (many - few) / PASSES, LEAST_S / 10)}


def _recurrent(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Launches of cuDNN's kernels for time steps, from how long asking for a layer took."""
    each: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["record"] != "kernel" or row["family"] != "rnn" or not row.get("host_s"):
            continue
        for operation in operations_of("rnn", row["params"]):
            for name, number in of_operation(operation).items():
                if name.startswith("host.launch_s.rnn") and number > 0:
                    # Asking for a gradient asked for the layer itself before.
                    twice = 2 if name.endswith("backward") else 1
                    each[name].append(float(row["host_s"]) / number / twice)
    return {name: statistics.median(found) for name, found in each.items()}
