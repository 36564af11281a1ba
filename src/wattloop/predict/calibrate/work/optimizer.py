"""Whole optimizer steps, and the list operations inside them."""

import math
from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work.params import Params

__all__ = ["build", "make_optimizer"]


def build(bench: Bench, p: Params) -> Work:
    """A step over `tensors` parameters of equal size, or one list operation over them."""
    if p.text("function", ""):
        return _function(bench, p)
    torch = bench.torch
    parameters = _tensors(bench, p)
    for parameter in parameters:
        parameter.requires_grad_()
        parameter.grad = torch.randn_like(parameter)
    optimizer = make_optimizer(torch, p.text("optimizer"), p.text("style"), parameters)
    return Work([optimizer.step])


def make_optimizer(torch: Any, name: str, style: str, parameters: Any) -> Any:
    """An optimizer as its users write it; `style` is `loop`, `foreach` or `fused`."""
    manner: dict[str, Any] = (
        {"fused": True} if style == "fused" else {"foreach": style == "foreach"}
    )
    optim = torch.optim
    if name == "sgd":
        return optim.SGD(parameters, lr=1e-3, momentum=0.9, **manner)
    kinds = {"adamw": optim.AdamW, "adam": optim.Adam, "rmsprop": optim.RMSprop}
    return kinds[name](parameters, lr=1e-4, **manner)


def _tensors(bench: Bench, p: Params) -> list[Any]:
    each = p.number("elements") // p.number("tensors")
    side = math.isqrt(each)
    return [
        bench.torch.randn((side, each // side), device=bench.device)
        for _ in range(p.number("tensors"))
    ]


def _function(bench: Bench, p: Params) -> Work:
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
    return Work([calls[p.text("function")]])
