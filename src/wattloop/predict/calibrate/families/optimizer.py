"""Optimizer cases: whole steps, and the list operations inside them."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from wattloop.predict.calibrate.case import CalibrationCase, Params, cases_of
from wattloop.predict.calibrate.device import CalibrationDevice, KernelCalls


def build_optimizer(bench: CalibrationDevice, p: Params) -> KernelCalls:
    """Build a step over `tensors` parameters of equal size, or one list operation over them."""
    if p.text("function", ""):
        return _function(bench, p)
    torch = bench.torch
    parameters = _tensors(bench, p)
    for parameter in parameters:
        parameter.requires_grad_()
        parameter.grad = torch.randn_like(parameter)
    optimizer = make_optimizer(torch, p.text("optimizer"), p.text("style"), parameters)
    return KernelCalls([optimizer.step])


def make_optimizer(torch: Any, name: str, style: str, parameters: Any) -> Any:
    """Return an optimizer; `style` is `loop`, `foreach` or `fused`."""
    manner: dict[str, Any] = (
        {"fused": True} if style == "fused" else {"foreach": style == "foreach"}
    )
    optim = torch.optim
    if name == "sgd":
        return optim.SGD(parameters, lr=1e-3, momentum=0.9, **manner)
    kinds = {"adamw": optim.AdamW, "adam": optim.Adam, "rmsprop": optim.RMSprop}
    return kinds[name](parameters, lr=1e-4, **manner)


def _tensors(bench: CalibrationDevice, p: Params) -> list[Any]:
    each = p.number("elements") // p.number("tensors")
    side = math.isqrt(each)
    return [
        bench.torch.randn((side, each // side), device=bench.device)
        for _ in range(p.number("tensors"))
    ]


def _function(bench: CalibrationDevice, p: Params) -> KernelCalls:
    torch = bench.torch
    a = _tensors(bench, p)
    b = [torch.rand_like(tensor) + 0.5 for tensor in a]
    c = [torch.rand_like(tensor) + 0.5 for tensor in a]
    calls: dict[str, Callable[[], Any]] = {
        "mul_scalar": lambda: torch._foreach_mul_(a, 0.999),
        "add_scalar": lambda: torch._foreach_add_(a, 1e-8),
        "add_list": lambda: torch._foreach_add_(a, b, alpha=0.01),
        "addcmul": lambda: torch._foreach_addcmul_(a, b, c, value=0.001),
        "addcdiv": lambda: torch._foreach_addcdiv_(a, b, c, value=-0.001),
        "lerp": lambda: torch._foreach_lerp_(a, b, 0.1),
        "sqrt": lambda: torch._foreach_sqrt(b),
        "div_list": lambda: torch._foreach_div_(a, b),
        "zero": lambda: torch._foreach_zero_(a),
    }
    return KernelCalls([calls[p.text("function")]])


FUNCTIONS = ("mul_scalar", "add_scalar", "add_list", "addcmul", "addcdiv", "lerp", "sqrt",
             "div_list", "zero")  # fmt: skip
OPTIMIZERS = ("adamw", "adam", "sgd", "rmsprop")
MOST_ELEMENTS = 4e8


def optimizer_cases() -> list[CalibrationCase]:
    """Return whole steps by style, and single list operations."""
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
    """Return lists of half a billion and of a billion elements."""
    for function in FUNCTIONS:
        for tensors, each in ((150, 2**22), (200, 5_500_000)):
            yield {"function": function, "tensors": tensors, "elements": tensors * each}
