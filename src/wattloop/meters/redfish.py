"""Node power from the baseboard controller through Redfish."""

import base64
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.records import Gap
from wattloop.meters.base import Context
from wattloop.meters.polling import STALE_S, UPDATE_PERIOD_S, PolledNode

CHASSIS = "/redfish/v1/Chassis"
MAX_BYTES = 4_000_000
MOST_W = 1e6


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of the controller; credentials never appear in `repr`, message or source."""

    origin: str
    path: str
    verify: bool
    authorization: str = field(repr=False)

    @classmethod
    def parse(cls, url: str, environment: Mapping[str, str] | None = None) -> "Endpoint":
        """Take `https://user:pass@bmc/redfish/v1/Chassis/1?verify=no` apart."""
        env = os.environ if environment is None else environment
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            # The text may hold a password, so it is not repeated.
            raise ConfigError("redfish_url must look like https://user:pass@bmc[:port][/path]")
        if ":" in host:
            host = f"[{host}]"
        user = urllib.parse.unquote(parts.username or "") or env.get("WATTLOOP_REDFISH_USER", "")
        word = urllib.parse.unquote(parts.password or "") or env.get(
            "WATTLOOP_REDFISH_PASSWORD", ""
        )
        query = urllib.parse.parse_qs(parts.query)
        authorization = ""
        if user:
            token = base64.b64encode(f"{user}:{word}".encode()).decode()
            authorization = f"Basic {token}"
        return cls(
            origin=f"{parts.scheme}://{host}" + (f":{port}" if port else ""),
            path=parts.path.rstrip("/"),
            verify=query.get("verify", ["yes"])[0].lower() not in ("no", "0", "false", "off"),
            authorization=authorization,
        )


class RedfishClient:
    """Client of one controller; caches which of its resources have power readings."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._sensors: list[tuple[str, str]] | None = None
        # A redirect would carry the credentials to wherever it points.
        context = ssl.create_default_context() if endpoint.verify else _unverified()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirect(),
        )

    def power_w(self) -> float | Gap:
        """Watts of all chassis together."""
        try:
            if self._sensors is None:
                self._sensors = self._find_sensors()
            return sum(self._sensor_w(path, kind) for path, kind in self._sensors)
        except _FaultError as fault:
            # The next poll searches the sensors again: chassis may be added and removed.
            self._sensors = None
            return Gap(f"Redfish {self._endpoint.origin}: {fault}")

    def _find_sensors(self) -> list[tuple[str, str]]:
        path = self._endpoint.path
        if path.startswith(CHASSIS + "/"):
            chassis = [path]
        else:
            members = self._get(CHASSIS).get("Members")
            if not isinstance(members, list):
                raise _FaultError(f"{CHASSIS} lists no chassis")
            chassis = [
                str(m["@odata.id"]) for m in members if isinstance(m, dict) and "@odata.id" in m
            ]
        sensors = [sensor for path in chassis for sensor in self._chassis_sensor(path)]
        if not sensors:
            raise _FaultError("no chassis has a power reading")
        return sensors

    def _chassis_sensor(self, path: str) -> list[tuple[str, str]]:
        """The chassis' power resource, newer kind first; none for a chassis without power."""
        chassis = self._get(path)
        for kind in ("EnvironmentMetrics", "Power"):
            link = chassis.get(kind)
            if isinstance(link, dict) and "@odata.id" in link:
                target = str(link["@odata.id"])
                if _reading_w(self._get(target), kind) is not None:
                    return [(target, kind)]
        return []

    def _sensor_w(self, path: str, kind: str) -> float:
        power_w = _reading_w(self._get(path), kind)
        if power_w is None:
            raise _FaultError(f"{path} has no power reading")
        return power_w

    def _get(self, path: str) -> dict[str, Any]:
        headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if self._endpoint.authorization:
            headers["Authorization"] = self._endpoint.authorization
        request = urllib.request.Request(self._endpoint.origin + path, headers=headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                data = json.loads(response.read(MAX_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            raise _FaultError(_status_in_words(error.code, path)) from None
        except urllib.error.URLError as error:
            raise _FaultError(f"no connection: {error.reason}") from None
        except TimeoutError:
            raise _FaultError(f"no answer within {self._timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            kind = "is not JSON" if isinstance(error, ValueError) else f"broke off: {error}"
            raise _FaultError(f"answer to {path} {kind}") from None
        if not isinstance(data, dict):
            raise _FaultError(f"answer to {path} is not a Redfish resource")
        return data


class _FaultError(Exception):
    """The reason why the controller's answer is unusable, for people."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Refuse, so that the status is reported as it is."""
        return


def _reading_w(resource: dict[str, Any], kind: str) -> float | None:
    if kind == "EnvironmentMetrics":
        power = resource.get("PowerWatts")
        value = power.get("Reading") if isinstance(power, dict) else None
    else:
        controls = resource.get("PowerControl")
        first = controls[0] if isinstance(controls, list) and controls else None
        value = first.get("PowerConsumedWatts") if isinstance(first, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Controllers give 0 when they do not know; JSON allows numbers no machine can draw.
    return float(value) if 0 < value <= MOST_W else None


def _status_in_words(status: int, path: str) -> str:
    if status in (401, 403):
        return (
            f"refuses us (HTTP {status}); check user and password "
            "(WATTLOOP_REDFISH_USER, WATTLOOP_REDFISH_PASSWORD)"
        )
    return f"{path} answered HTTP {status}"


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


TIMEOUT_S = 5.0


def detect(context: Context) -> Sequence["Redfish"]:
    """Return the meter only where `redfish_url` names a controller; sends no request yet."""
    url = context.settings.redfish_url
    if not url:
        raise MeterUnavailable(
            "redfish", "no controller named", "set WATTLOOP_REDFISH_URL=https://user:pass@bmc"
        )
    return [Redfish(url, context.clock)]


class Redfish(PolledNode):
    """Asks the controller in a background thread for the sum over its chassis."""

    name: ClassVar[str] = "redfish"

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        period_s: float = UPDATE_PERIOD_S,
        stale_s: float = STALE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        # HTTP and TLS take 30 ms to import, which only those pay who name a controller.

        endpoint = Endpoint.parse(url)
        super().__init__(
            RedfishClient(endpoint, timeout_s).power_w,
            clock,
            source=f"Redfish {endpoint.origin}",
            period_s=period_s,
            stale_s=stale_s,
        )
