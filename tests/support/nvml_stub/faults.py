"""Fault injection into stub cards, from any process."""

import time
from typing import Any

from .state import Call, GpuState


def inject(card: GpuState, fault: str, **options: Any) -> None:
    """Break a card.

    `lost`, `no_permission`, `reset_required`, `counter_reset` take `at_s` (monotonic; now if left
    out); `unsupported`, `forbidden` and `no_effect` (a setter that is accepted and does nothing)
    take `calls`, a `Call`; `unknown_error` takes `probability`; `mig`, `vgpu` and `heal` take
    nothing.
    """
    at_s = options.get("at_s", time.monotonic())
    match fault:
        case "lost":
            card.lost_at_s = at_s
        case "no_permission":
            card.forbidden_at_s = at_s
        case "reset_required":
            card.reset_required_at_s = at_s
        case "counter_reset":
            card.counter_reset_at_s = at_s
        case "unsupported":
            card.unsupported_calls = float(options["calls"])
        case "forbidden":
            card.forbidden_calls = float(options["calls"])
        case "no_effect":
            card.ignored_calls = float(options.get("calls", Call.SET))
        case "unknown_error":
            card.error_probability = options["probability"]
        case "mig":
            card.mig_mode = 1
        case "vgpu":
            card.virtualization_mode = 2
        case "heal":
            card.lost_at_s = card.forbidden_at_s = card.reset_required_at_s = 0
            card.unsupported_calls = card.forbidden_calls = card.ignored_calls = float(Call(0))
            card.error_probability = card.mig_mode = card.virtualization_mode = 0
        case _:
            raise ValueError(f"unknown fault {fault!r}")
