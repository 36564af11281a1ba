"""All cases of the suite, section by section."""

from collections.abc import Sequence

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.batches import batch_families
from wattloop.predict.calibrate.grid.conv import conv_cases
from wattloop.predict.calibrate.grid.gemm import batched_cases, gemm_cases
from wattloop.predict.calibrate.grid.memory import memory_families
from wattloop.predict.calibrate.grid.optimizer import optimizer_cases
from wattloop.predict.calibrate.grid.order import interleaved
from wattloop.predict.calibrate.grid.power import power_cases
from wattloop.predict.calibrate.grid.sequence import attention_cases, rnn_cases
from wattloop.predict.calibrate.grid.steps import profile_cases, step_cases
from wattloop.predict.calibrate.grid.tiny import tiny_cases
from wattloop.predict.calibrate.grid.typical import typical_families
from wattloop.predict.calibrate.grid.waiting import waiting_cases
from wattloop.predict.calibrate.host import host_cases

__all__ = ["SHARES", "cases"]

SHARES = {"kernels": 0.42, "host": 0.04, "power": 0.18, "steps": 0.25, "waiting": 0.07,
          "profile": 0.04}  # fmt: skip
"""Parts of the time that the sections get."""


def cases(section: str, *, tiny: bool = False) -> Sequence[Case]:
    """The section's cases in the order they are taken; a `tiny` suite only tries the program."""
    if tiny:
        return tiny_cases(section)
    if section == "kernels":
        families = [
            gemm_cases(),
            batched_cases(),
            conv_cases(),
            attention_cases(),
            rnn_cases(),
            optimizer_cases(),
            *memory_families(),
            *typical_families(),
            *batch_families(),
        ]
        return list(interleaved(families))
    return {
        "host": host_cases,
        "power": power_cases,
        "steps": step_cases,
        "waiting": waiting_cases,
        "profile": profile_cases,
    }[section]()
