"""Steps of optimizers, and the list operations they are made of."""

import random
from collections.abc import Iterator

from wattloop.predict.calibrate.case import Case
from wattloop.predict.calibrate.grid.order import cases_of

__all__ = ["optimizer_cases"]

FUNCTIONS = ("mul_scalar", "add_scalar", "add_list", "addcmul", "addcdiv", "lerp", "sqrt",
             "div_list", "zero")  # fmt: skip
OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop")
MOST_ELEMENTS = 4e8


def optimizer_cases() -> list[Case]:
    """Whole steps by style, and single list operations."""
    return cases_of("kernels", "optimizer", [*_steps(), *_functions(), *_large_models()])


def _steps() -> Iterator[dict[str, object]]:
    pick = random.Random("steps")
    for optimizer in OPTIMIZERS:
        for style in ("foreach", "fused", "loop"):
            if style == "fused" and optimizer == "rmsprop":
                continue
            for _ in range(14 if optimizer == "adamw" else 7):
                tensors = pick.choice((1, 4, 12, 40) if style == "loop" else (1, 8, 40, 160, 400))
                each = pick.choice((64, 1024, 2**16, 2**20, 2**22, 2**24))
                if tensors * each <= MOST_ELEMENTS:
                    yield {"optimizer": optimizer, "style": style, "tensors": tensors,
                           "elements": tensors * each}  # fmt: skip


def _functions() -> Iterator[dict[str, object]]:
    pick = random.Random("functions")
    for function in FUNCTIONS:
        for _ in range(14):
            tensors = pick.choice((1, 4, 16, 64, 160, 400))
            each = pick.choice((64, 1024, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24))
            if tensors * each <= MOST_ELEMENTS:
                yield {"function": function, "tensors": tensors, "elements": tensors * each}


def _large_models() -> Iterator[dict[str, object]]:
    """Lists of half a billion and of a billion elements."""
    for function in FUNCTIONS:
        for tensors, each in ((150, 2**22), (200, 5_500_000)):
            yield {"function": function, "tensors": tensors, "elements": tensors * each}
