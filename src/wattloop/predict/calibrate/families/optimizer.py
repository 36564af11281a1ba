"""Optimizers: whole steps, and the list operations inside them."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from wattloop.predict.calibrate.families.base import Family, Params, Row, row
from wattloop.predict.calibrate.machine import CalibrationDevice, KernelCalls
from wattloop.predict.workload import costs
from wattloop.predict.workload.operation import Operation

STEPPED = ("adamw", "adam", "sgd", "rmsprop")
MOST_ELEMENTS = 4e8
LISTS: Mapping[str, tuple[int, int, Callable[..., Any]]] = {
    "mul_scalar": (1, 1, lambda torch, a, b, c: torch._foreach_mul_(a, 0.999)),
    "add_scalar": (1, 1, lambda torch, a, b, c: torch._foreach_add_(a, 1e-8)),
    "add_list": (2, 1, lambda torch, a, b, c: torch._foreach_add_(a, b, alpha=0.01)),
    "addcmul": (3, 1, lambda torch, a, b, c: torch._foreach_addcmul_(a, b, c, value=0.001)),
    "addcdiv": (3, 1, lambda torch, a, b, c: torch._foreach_addcdiv_(a, b, c, value=-0.001)),
    "lerp": (2, 1, lambda torch, a, b, c: torch._foreach_lerp_(a, b, 0.1)),
    "sqrt": (1, 1, lambda torch, a, b, c: torch._foreach_sqrt(b)),
    "div_list": (2, 1, lambda torch, a, b, c: torch._foreach_div_(a, b)),
    "zero": (0, 1, lambda torch, a, b, c: torch._foreach_zero_(a)),
}
"""List operation -> lists read, lists written, call."""


class Optimizer(Family):
    """Steps over `tensors` parameters of equal size, or one list operation over them."""

    name = "optimizer"

    def rows(self) -> Iterable[Iterable[Row]]:
        return [*_steps(), *_functions(), *_large_models()], _typical()

    def build(self, device: CalibrationDevice, p: Params) -> KernelCalls:
        torch = device.torch
        each = p.number("elements") // p.number("tensors")
        side = math.isqrt(each)
        tensors = [
            torch.randn((side, each // side), device=device.device)
            for _ in range(p.number("tensors"))
        ]
        if function := p.text("function", ""):
            b = [torch.rand_like(tensor) + 0.5 for tensor in tensors]
            c = [torch.rand_like(tensor) + 0.5 for tensor in tensors]
            return KernelCalls([lambda: LISTS[function][2](torch, tensors, b, c)])
        for parameter in tensors:
            parameter.requires_grad_()
            parameter.grad = torch.randn_like(parameter)
        optimizer = make_optimizer(torch, p.text("optimizer"), p.text("style"), tensors)
        return KernelCalls([optimizer.step])

    def operations(self, p: Params) -> tuple[Operation, ...]:
        tensors, elements = p.numbers("tensors", "elements")
        sizes = [elements // tensors] * tensors
        if not p.text("function", ""):
            return costs.optimizer_step(p.text("optimizer"), sizes, style=p.text("style"))
        reads, writes, _ = LISTS[p.text("function")]
        return (
            costs.foreach("adamw", tensors, elements, fused=False, lists_read=reads,
                          lists_written=writes, sizes=sizes),
        )  # fmt: skip


def make_optimizer(torch: Any, name: str, style: str, parameters: Any) -> Any:
    """Return an optimizer; `style` is `loop`, `foreach` or `fused`."""
    how: dict[str, Any] = {"fused": True} if style == "fused" else {"foreach": style == "foreach"}
    optim = torch.optim
    if name == "sgd":
        return optim.SGD(parameters, lr=1e-3, momentum=0.9, **how)
    kinds = {"adamw": optim.AdamW, "adam": optim.Adam, "rmsprop": optim.RMSprop}
    return kinds[name](parameters, lr=1e-4, **how)


def _steps() -> Iterator[Row]:
    pick = random.Random("steps")
    for optimizer in STEPPED:
        for style in ("foreach", "fused", "loop"):
            if style == "fused" and optimizer == "rmsprop":
                continue
            for _ in range(14 if optimizer == "adamw" else 7):
                tensors = pick.choice((1, 4, 12, 40) if style == "loop" else (1, 8, 40, 160, 400))
                elements = tensors * pick.choice((64, 1024, 2**16, 2**20, 2**22, 2**24))
                if elements <= MOST_ELEMENTS:
                    yield row(optimizer=optimizer, style=style, tensors=tensors, elements=elements)


def _functions() -> Iterator[Row]:
    pick = random.Random("functions")
    for function in LISTS:
        for _ in range(14):
            tensors = pick.choice((1, 4, 16, 64, 160, 400))
            each = pick.choice((64, 1024, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24))
            if tensors * each <= MOST_ELEMENTS:
                yield row(function=function, tensors=tensors, elements=tensors * each)


def _large_models() -> Iterator[Row]:
    """Yield lists of half a billion and of a billion elements."""
    for function in LISTS:
        for tensors, each in ((150, 2**22), (200, 5_500_000)):
            yield row(function=function, tensors=tensors, elements=tensors * each)


def _typical() -> Iterator[Row]:
    pick = random.Random("typical lists")
    functions = ("mul_scalar", "add_list", "addcmul", "addcdiv", "lerp", "sqrt", "div_list")
    for _ in range(70):
        tensors = pick.choice((8, 30, 60, 100, 150, 200, 300))
        each = pick.choice((256, 1024, 4096, 2**14, 2**16, 2**18, 2**19, 2**20))
        if tensors * each <= MOST_ELEMENTS:
            sizes = row(tensors=tensors, elements=tensors * each)
            yield {**sizes, "function": pick.choice(functions)}
            if pick.random() < 0.3:
                name = pick.choice(("adamw", "adamw", "sgd", "adam"))
                yield {**sizes, "optimizer": name, "style": pick.choice(("foreach", "fused"))}
