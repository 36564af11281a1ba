"""Who may read, who may write, and what a browser may do with a page."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Header, HTTPException, Request, Response

from wattloop.serve.options import LOCAL_HOSTS, ServeOptions

__all__ = ["Writer", "guarded", "is_known"]

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


def guarded(
    options: ServeOptions,
) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    """A middleware: headers on everything; readers from elsewhere need the token.

    A page of another site could make a browser ask this address by another name (DNS rebinding):
    without a token only this machine's names are answered.
    """

    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        name = request.url.hostname or ""
        if not options.token and name not in (*LOCAL_HOSTS, "testserver"):
            return Response(f"not served under the name {name}", status_code=421)
        if not options.is_local and not is_known(request, options.token):
            return Response(
                "a token is needed: send 'Authorization: Bearer TOKEN', or open /?token=TOKEN\n",
                status_code=401,
                headers={"WWW-Authenticate": "Bearer", **HEADERS},
            )
        response = await call_next(request)
        for key, value in HEADERS.items():
            response.headers.setdefault(key, value)
        given = request.query_params.get("token", "")
        if options.token and _same(given, options.token):
            response.set_cookie(COOKIE, given, httponly=True, samesite="strict")
        return response

    return guard


def is_known(request: Request, token: str) -> bool:
    """Whether the caller knows the token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and _same(given.strip(), token):
        return True
    known = (request.cookies.get(COOKIE, ""), request.query_params.get("token", ""))
    return any(_same(each, token) for each in known)


def _may_write(
    request: Request, authorization: Annotated[str, Header(include_in_schema=False)] = ""
) -> None:
    """Only with the token in a header, which no page of another site can send."""
    token: str = request.app.state.house.options.token
    if not token:
        raise HTTPException(403, "writing is off: start the server with --token")
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not _same(given.strip(), token):
        raise HTTPException(401, "send 'Authorization: Bearer TOKEN'")


Writer = Depends(_may_write)
"""Put on every call that changes something."""


def _same(given: str, token: str) -> bool:
    return bool(token) and hmac.compare_digest(given.encode(), token.encode())
