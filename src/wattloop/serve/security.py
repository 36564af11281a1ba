"""Access control of the server: tokens, roles, security headers of pages."""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum
from http.cookies import CookieError, SimpleCookie
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlencode

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection
from starlette.responses import Response

from wattloop.core.text import plain
from wattloop.fleet.tokens import ADMIN, ANYBODY, Caller, Role, TokenFile
from wattloop.serve.errors import refusal_body
from wattloop.serve.options import LOCAL_HOSTS, ServeOptions
from wattloop.serve.state import Refusals

COOKIE = "wattloop_token"
QUERY = "token"
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
NO_TOKEN = 401
NOT_KEPT = {"Cache-Control": "no-store"}
NODES_MAY = ("/api/v1/ingest/", "/api/v1/nodes/")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Way(Enum):
    """Transport of a token."""

    HEADER = "header"
    """Which no page of another site can send."""
    COOKIE = "cookie"
    QUERY = "query"


class Guard:
    """Middleware: security headers on every answer; remote readers need a token.

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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _without_nul(scope)
        asked = HTTPConnection(scope)
        caller, way = self._caller(asked)
        scope.setdefault("state", {})
        scope["state"]["caller"], scope["state"]["bearer"] = caller, way is Way.HEADER
        refusal = self._refusal(asked, caller)
        if refusal is not None:
            status, why = refusal
            what = f"{scope['method']} {asked.url.path}"
            self._refusals.note(caller, _address(asked), what, why)
            body, kind = refusal_body(asked.url.path, why)
            answer = Response(body, status, _headers_of(status), kind)
            await answer(scope, receive, self._sending(send, ""))
            return
        is_shown = way is Way.QUERY and caller.may_read
        given = asked.query_params[QUERY] if is_shown else ""
        clean = self._clean_address(asked, caller) if scope["method"] in ("GET", "HEAD") else None
        if clean is not None:
            answer = Response(status_code=303, headers={"Location": clean, **NOT_KEPT})
            await answer(scope, receive, self._sending(send, given))
            return
        await self._app(scope, receive, self._sending(send, given))

    def _clean_address(self, asked: HTTPConnection, caller: Caller) -> str | None:
        """Return the page's address without the token, which would stay in the browser's history.

        Relative to the page, so that it is right behind a proxy. None for the API: its callers
        keep no cookies.
        """
        if QUERY not in asked.query_params or not caller.may_read or caller.role is Role.ANYBODY:
            return None
        if asked.url.path.startswith("/api/"):
            return None
        rest = [pair for pair in asked.query_params.multi_items() if pair[0] != QUERY]
        page = "./" + quote(asked.url.path.rpartition("/")[2], safe="")
        return f"{page}?{urlencode(rest)}" if rest else page

    def _refusal(self, asked: HTTPConnection, caller: Caller) -> tuple[int, str] | None:
        """Return status and reason of a refusal; None when the request is allowed."""
        if self._options.is_local:
            name = asked.url.hostname or ""
            is_here = name in (*LOCAL_HOSTS, "testserver")
            if caller.role is Role.ANYBODY and not is_here:
                return 421, f"not served under the name {name}"
            return None
        if caller.role is Role.ANYBODY:
            return (
                NO_TOKEN,
                "a token is needed: send 'Authorization: Bearer TOKEN', or open /?token=TOKEN",
            )
        if not caller.may_read and not asked.url.path.startswith(NODES_MAY):
            return 403, "a node's token reads nothing"
        return None

    def _caller(self, asked: HTTPConnection) -> tuple[Caller, Way | None]:
        """Return the caller, and how the token was sent."""
        scheme, _, given = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = self._known(given.strip())
            if found is not None:
                return found, Way.HEADER
        in_query = asked.query_params.get(QUERY, "")
        for way, secret in ((Way.QUERY, in_query), (Way.COOKIE, _cookie(asked))):
            found = self._known(secret) if secret else None
            if found is not None:
                return found, way
        return ANYBODY, None

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
                    # a header has no room for all characters
                    value = quote(given, safe="")
                    # lax: it is needed at the address that a link of another site leads to; a page
                    # of another site can neither read answers nor write, which takes a header
                    cookie.set_cookie(COOKIE, value, httponly=True, samesite="lax")
                    headers += [p for p in cookie.raw_headers if p[0] == b"set-cookie"]
                message = {**message, "headers": headers}
            await send(message)

        return sending


def refuse(request: Request, status: int, why: str) -> HTTPException:
    """Log a refused request and return the exception to raise."""
    state = request.app.state.wattloop
    what = f"{request.method} {request.url.path}"
    state.refusals.note(request.state.caller, _address(request), what, why)
    return HTTPException(status, why, _headers_of(status))


async def _asking(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


Asking = Annotated[Caller, Depends(_asking)]
"""Who asks."""
BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)
"""For the document: who may is decided by `Guard`, whose answer the request carries."""
Described = Depends(BEARER)


async def check_writer(request: Request) -> None:
    """Require a token in a header, which no page of another site can send."""
    options: ServeOptions = request.app.state.wattloop.options
    if not options.has_tokens:
        raise refuse(request, 403, "writing is off: start the server with --token or --tokens")
    caller: Caller = request.state.caller
    if not request.state.bearer:
        raise refuse(request, NO_TOKEN, "send 'Authorization: Bearer TOKEN'")
    if not caller.may_write_runs:
        raise refuse(request, 403, f"a {caller.role.value}'s token writes nothing")


async def _writer(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
) -> None:
    del given
    await check_writer(request)


Writer = Depends(_writer)
"""Put on every call that changes something."""


def _without_nul(scope: Scope) -> None:
    """Replace NUL in an address: databases refuse it."""
    scope["path"] = plain(scope["path"])
    query: bytes = scope["query_string"]
    if b"%00" in query or b"\0" in query:
        shown = quote(plain("\0")).encode()
        scope["query_string"] = query.replace(b"%00", shown).replace(b"\0", shown)


def _headers_of(status: int) -> dict[str, str] | None:
    return {"WWW-Authenticate": "Bearer"} if status == NO_TOKEN else None


def _cookie(asked: HTTPConnection) -> str:
    try:
        found = SimpleCookie(asked.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else unquote(found.value)


def _address(asked: HTTPConnection) -> str:
    return "nowhere" if asked.client is None else asked.client.host
