"""Request bodies limited in size and time, and the fast path of deliveries."""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from wattloop.core.errors import WattloopError
from wattloop.fleet.delivery.client import NODE_NAME
from wattloop.serve.errors import API_ROOT, answer_fault, answer_refusal

BODY_S = 120.0
"""For the largest body: 8 MiB at half a megabit a second."""


async def read_body(request: Request, most_b: int) -> bytes:
    """Read the body; 413 above the size, 408 when the rest does not arrive."""
    parts, size_b = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size_b += len(part)
                if size_b > most_b:
                    raise HTTPException(413, f"at most {most_b} bytes at a time")
                parts.append(part)
    except ClientDisconnect:  # killed while it sent: it will send it again
        raise HTTPException(400, "the rest of it did not come") from None
    except TimeoutError:
        raise HTTPException(
            408, f"the rest of it did not come within {BODY_S:g} s", {"Connection": "close"}
        ) from None
    return b"".join(parts)


# Fast path for deliveries: two hundred nodes send one each every second.
#
# The way through FastAPI's routers and dependencies costs more than what a delivery asks for; the
# route is declared there as any other, for the documentation and for other callers.

PATH = re.compile(rf"{API_ROOT}/nodes/({NODE_NAME.pattern})/delivery")
Answer = Callable[[Request, str], Awaitable[Response]]


class DeliveryMiddleware:
    """Middleware that answers deliveries itself.

    Args:
        app: everything else.
        answer: what a delivery is answered with.
    """

    def __init__(self, app: Any, answer: Answer) -> None:
        self._app = app
        self._answer = answer

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a delivery, or pass the request on."""
        found = None
        if scope["type"] == "http" and scope["method"] == "POST":
            found = PATH.fullmatch(scope["path"])
        if found is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request, found[1])
        except WattloopError as error:
            response = await answer_fault(request, error)
        except HTTPException as error:
            response = await answer_refusal(request, error)
        await response(scope, receive, send)
