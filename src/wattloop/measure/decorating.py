"""A function whose every call is measured, whatever kind of function it is."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, aclosing
from typing import Any, ParamSpec, TypeVar, cast

__all__ = ["decorated"]

P = ParamSpec("P")
R = TypeVar("R")
Region = Callable[[], AbstractContextManager[Any]]


def decorated(function: Callable[P, R], block: Region, stretch: Region) -> Callable[P, R]:
    """`function`, measured from the call to its end.

    Args:
        function: a plain, coroutine, generator or asynchronous generator function. Generators are
            measured from their first item until they are exhausted or closed; what their consumer
            does between two items is in it. Items sent to an asynchronous generator are not
            passed on.
        block: what to enter around a call that runs in one go.
        stretch: the same for a call that others run in between.
    """
    import inspect  # 10 ms, which only those pay who decorate

    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            with block():
                return await function(*args, **kwargs)

    elif inspect.isasyncgenfunction(function):

        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
            with stretch():
                async with aclosing(function(*args, **kwargs)) as items:
                    async for item in items:
                        yield item

    elif inspect.isgeneratorfunction(function):

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            with stretch():
                return (yield from function(*args, **kwargs))

    else:

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with block():
                return function(*args, **kwargs)

    return cast("Callable[P, R]", functools.wraps(function)(wrapper))
