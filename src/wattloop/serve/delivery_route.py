"""Fast path for deliveries: two hundred nodes send one each every second.

The way through FastAPI's routers and dependencies costs more than what a delivery asks for; the
route is declared there as any other, for the documentation and for other callers.
"""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from wattloop.core.errors import WattloopError
from wattloop.fleet.delivery.client import NODE_NAME
from wattloop.serve.errors import API_ROOT, answer_fault, answer_refusal

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
