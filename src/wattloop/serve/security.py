"""Who may read, who may write, and what a browser may do with a page."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response

from wattloop.fleet.tokens import ADMIN, ANYBODY, Caller, Role, TokenFile
from wattloop.serve.options import LOCAL_HOSTS, ServeOptions
from wattloop.serve.refusals import Refusals

__all__ = ["Asking", "Guard", "Writer", "check_writer", "refuse"]

COOKIE = "wattloop_token"
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
# 'unsafe-inline' for styles only: Vega sets them on what it draws.
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
NODES_MAY = ("/api/v1/ingest/", "/api/v1/nodes/")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """Around everything: headers on every answer; readers from elsewhere need a token.

    A page of another site could make a browser ask this address by another name (DNS rebinding):
    without a token only this machine's names are answered.
    """

    def __init__(
        self,
        app: Any,
        options: ServeOptions,
        tokens: TokenFile | None,
        refusals: Refusals,
    ) -> None:
        self._app = app
        self._options = options
        self._tokens = tokens
        self._refusals = refusals
        self._headers = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = HTTPConnection(scope)
        caller, bearer = self._caller(asked)
        scope.setdefault("state", {})
        scope["state"]["caller"], scope["state"]["bearer"] = caller, bearer
        refusal = self._refusal(asked, caller)
        if refusal is not None:
            what = f"{scope['method']} {asked.url.path}"
            why = bytes(refusal.body).decode().strip()
            self._refusals.note(caller, _address(asked), what, why)
            await refusal(scope, receive, self._sending(send, ""))
            return
        given = asked.query_params.get("token", "") if caller.may_read else ""
        await self._app(scope, receive, self._sending(send, given))

    def _refusal(self, asked: HTTPConnection, caller: Caller) -> Response | None:
        if self._options.is_local:
            name = asked.url.hostname or ""
            is_here = name in (*LOCAL_HOSTS, "testserver")
            if caller.role is Role.ANYBODY and not is_here:
                return Response(f"not served under the name {name}", status_code=421)
            return None
        if caller.role is Role.ANYBODY:
            return Response(
                "a token is needed: send 'Authorization: Bearer TOKEN', or open /?token=TOKEN\n",
                status_code=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not caller.may_read and not asked.url.path.startswith(NODES_MAY):
            return Response("a node's token reads nothing\n", status_code=403)
        return None

    def _caller(self, asked: HTTPConnection) -> tuple[Caller, bool]:
        """Who asks, and whether by the header, which no page of another site can send."""
        scheme, _, given = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = self._known(given.strip())
            if found is not None:
                return found, True
        for secret in (_cookie(asked), asked.query_params.get("token", "")):
            found = self._known(secret) if secret else None
            if found is not None:
                return found, False
        return ANYBODY, False

    def _known(self, secret: str) -> Caller | None:
        token = self._options.token
        if token and hmac.compare_digest(secret.encode(), token.encode()):
            return ADMIN
        return None if self._tokens is None else self._tokens.caller(secret)

    def _sending(self, send: Send, given: str) -> Send:
        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers") or ())
                present = {name for name, _ in headers}
                headers += [pair for pair in self._headers if pair[0] not in present]
                if given:
                    cookie = Response()
                    cookie.set_cookie(COOKIE, given, httponly=True, samesite="strict")
                    headers += [p for p in cookie.raw_headers if p[0] == b"set-cookie"]
                message = {**message, "headers": headers}
            await send(message)

        return sending


def refuse(request: Request, status: int, why: str) -> HTTPException:
    """What to raise for somebody who may not do this; it is in the log, too."""
    house = request.app.state.house
    what = f"{request.method} {request.url.path}"
    house.refusals.note(request.state.caller, _address(request), what, why)
    return HTTPException(status, why)


async def _asking(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


Asking = Annotated[Caller, Depends(_asking)]
"""Who asks."""


async def check_writer(request: Request) -> None:
    """Only with a token in a header, which no page of another site can send."""
    options: ServeOptions = request.app.state.house.options
    if not options.has_tokens:
        raise refuse(request, 403, "writing is off: start the server with --token or --tokens")
    caller: Caller = request.state.caller
    if not request.state.bearer:
        raise refuse(request, 401, "send 'Authorization: Bearer TOKEN'")
    if not caller.may_write_runs:
        raise refuse(request, 403, f"a {caller.role.value}'s token writes nothing")


Writer = Depends(check_writer)
"""Put on every call that changes something."""


def _cookie(asked: HTTPConnection) -> str:
    try:
        found = SimpleCookie(asked.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _address(asked: HTTPConnection) -> str:
    return "nowhere" if asked.client is None else asked.client.host
