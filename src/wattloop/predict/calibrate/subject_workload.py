"""The trace of a network of the suite, made without weights."""

from wattloop.predict.workload.workload import Workload

__all__ = ["subject_workload"]


def subject_workload(name: str, batch: int, precision: str) -> Workload:
    """One training step of it, as `steps` trains it; needs torch."""
    import torch

    from wattloop.predict import trace
    from wattloop.predict.calibrate.zoo import subject

    with torch.device("meta"):
        chosen = subject(name)
        inputs = chosen.inputs(batch, torch.device("meta"))
    optimizer = "sgd+momentum" if chosen.optimizer == "sgd" else chosen.optimizer
    return trace(
        chosen.model, inputs, loss=lambda out: out, precision=precision,
        optimizer=optimizer, name=name,
    )  # fmt: skip
