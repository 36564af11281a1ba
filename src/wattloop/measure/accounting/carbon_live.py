"""A live provider of carbon intensity, asked once by URL at the end of a run.

The reply is a JSON object with `g_co2e_per_kwh`, or with `carbonIntensity` as Electricity Maps
has it; `zone` is shown when present.
"""

import json
import threading
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from wattloop.core.records import Gap

__all__ = ["LiveIntensity", "fetch_live", "shown_url"]

TIMEOUT_S = 2.0
MAX_REPLY_BYTES = 1_000_000
MAX_G_PER_KWH = 5_000.0
FIELDS = ("g_co2e_per_kwh", "carbonIntensity")


class LiveIntensity(NamedTuple):
    """What the provider said."""

    g_co2e_per_kwh: float
    zone: str


def fetch_live(url: str, timeout_s: float = TIMEOUT_S) -> LiveIntensity | Gap:
    """Ask `url`; a `Gap` with the reason when there is no usable answer within `timeout_s`.

    The request runs in a thread of its own, since the timeout of a socket bounds neither the
    look-up of a name nor a reply that trickles in.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        return Gap(f"{shown_url(url)}: only http and https are asked")
    answers: list[LiveIntensity | Gap] = []
    thread = threading.Thread(
        target=lambda: answers.append(_asked(url, timeout_s)), name="wattloop-carbon", daemon=True
    )
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else Gap(f"{shown_url(url)}: no answer within {timeout_s:g} s")


def shown_url(url: str) -> str:
    """Host and path only: user, password and query may hold a secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    except ValueError:
        return "carbon_url"


def _asked(url: str, timeout_s: float) -> LiveIntensity | Gap:
    import urllib.request  # 15 ms that only users of a live provider should pay
    from http.client import HTTPException

    # urllib takes `user:password@host` for a host and port, and says so in its error.
    address, authorization = _without_login(url)
    headers = {"Accept": "application/json", **authorization}
    try:
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            body = reply.read(MAX_REPLY_BYTES)
    except (OSError, ValueError, HTTPException) as problem:
        return Gap(f"{shown_url(url)}: {getattr(problem, 'reason', '') or problem}")
    return _understood(body, shown_url(url))


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """The URL without user and password, and the header that carries them instead."""
    parts = urlsplit(url)
    login, separator, host = parts.netloc.rpartition("@")
    if not separator:
        return url, {}
    from base64 import b64encode

    user, _, password = (unquote(part) for part in login.partition(":"))
    token = b64encode(f"{user}:{password}".encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {token}"}


def _understood(body: bytes, where: str) -> LiveIntensity | Gap:
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Gap(f"{where}: the reply is not JSON")
    if isinstance(data, dict):
        for field in FIELDS:
            value = data.get(field)
            if isinstance(value, int | float) and not isinstance(value, bool):
                if 0 <= value <= MAX_G_PER_KWH:
                    return LiveIntensity(float(value), str(data.get("zone") or ""))
                shown = str(value)[:20]
                return Gap(f"{where}: {field} {shown} is not within 0 and {MAX_G_PER_KWH:g}")
    return Gap(f"{where}: the reply has no number {' or '.join(FIELDS)}")
