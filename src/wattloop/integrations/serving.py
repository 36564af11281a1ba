"""Tokens and requests of a language-model server, joined with the energy of its run."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from wattloop.core.errors import ConfigError
from wattloop.core.records import shape_fault
from wattloop.core.units import (
    format_duration,
    format_energy,
    format_number,
    format_share,
    short_energy,
)

if TYPE_CHECKING:
    from wattloop.measure.session import Session
    from wattloop.store.database import Store
    from wattloop.store.run_record import RunRecord

TOKEN_VARIABLE = "WATTLOOP_SERVING_TOKEN"
"""Sent as a bearer token, for servers whose metrics need a key (llama.cpp with `--api-key`)."""


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """A stretch of time between two answers of the server, on the machine's monotonic clock.

    None is not known: llama.cpp does not count requests, and a sensor may be missing.
    """

    begin_s: float
    end_s: float
    energy_j: float | None
    prompt_tokens: float | None
    generated_tokens: float | None
    requests: float | None
    idle_s: float | None
    idle_j: float | None


@dataclass(frozen=True, slots=True)
class ServingTotals:
    """Work of a server between the first and the last answer, and its cost.

    Attributes:
        server: vLLM, SGLang, TGI or llama.cpp; empty where it never answered.
        duration_s: from the first to the last answer.
        energy_j: of everything that is measured, in that time.
        idle_s: time without a request in the server.
        startup_s: from the start of the program to the first answer; None for a server that
            answered at once.
        restarts: how often its counters began again.
        notes: why figures may be missing.
    """

    server: str = ""
    duration_s: float = 0.0
    energy_j: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    requests: float | None = None
    idle_s: float | None = None
    idle_j: float | None = None
    startup_s: float | None = None
    startup_j: float | None = None
    restarts: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ServingTotals:
        names = {f.name for f in fields(cls)}
        given = {name: value for name, value in data.items() if name in names}
        return cls(**given | {"notes": tuple(data.get("notes", ()))})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with every cost that is documented."""
        return asdict(self) | {name: self.costs.get(name) for name in COSTS}

    @property
    def costs(self) -> dict[str, float]:
        """Costs and rates of `COSTS`, as far as known."""
        generated = self.generated_tokens
        both = None if generated is None else generated + (self.prompt_tokens or 0.0)
        known = {
            "generated_token_j": _ratio(self.energy_j, generated),
            "token_j": None if self.prompt_tokens is None else _ratio(self.energy_j, both),
            "request_j": _ratio(self.energy_j, self.requests),
            "generated_tokens_per_s": _ratio(generated, self.duration_s),
            # (tokens / s) / W = tokens / J
            "generated_tokens_per_s_per_w": _ratio(generated, self.energy_j),
        }
        return {name: value for name, value in known.items() if value is not None}


COSTS = (
    "generated_token_j",
    "token_j",
    "request_j",
    "generated_tokens_per_s",
    "generated_tokens_per_s_per_w",
)
"""Joules per generated token, per token with prompts, per request; tokens/s; tokens/s/W."""


def format_serving(totals: ServingTotals) -> list[str]:
    """Return the lines that a summary shows: work and cost, then rates, idle time and start-up."""
    notes = list(totals.notes)
    costs = totals.costs
    if totals.generated_tokens is None:
        return notes
    line = f"{totals.server}: {totals.generated_tokens:,.0f} tokens generated"
    if totals.prompt_tokens is not None:
        line += f" after {totals.prompt_tokens:,.0f} of prompts"
    if totals.requests is not None:
        line += f" for {totals.requests:,.0f} request{'s' * (totals.requests != 1)}"
    shown = {"generated_token_j": "generated token", "token_j": "token", "request_j": "request"}
    parts = [f"{format_energy(costs[key])} per {of}" for key, of in shown.items() if key in costs]
    lines = [", ".join([line, *parts])]
    rates = []
    if "generated_tokens_per_s" in costs:
        rates.append(f"{format_number(costs['generated_tokens_per_s'])} tokens/s")
    if "generated_tokens_per_s_per_w" in costs:
        rates.append(f"{format_number(costs['generated_tokens_per_s_per_w'])} tokens/s per W")
    if totals.idle_s is not None and totals.duration_s > 0:
        share = f"idle {format_share(totals.idle_s / totals.duration_s, 0)}"
        rates.append(share + ("" if not totals.idle_j else f" ({short_energy(totals.idle_j)})"))
    if totals.startup_s is not None:
        text = f"start-up {format_duration(totals.startup_s)}"
        startup_j = totals.startup_j
        rates.append(text + ("" if startup_j is None else f" ({short_energy(startup_j)})"))
    return [*lines, *([", ".join(rates)] if rates else []), *notes]


def check_address(text: str) -> str:
    """Return the address of the metrics; a server's address without a path means `/metrics`.

    Raises:
        ConfigError: it is not an address that can be polled.
    """
    example = "write the address of the server's metrics, such as http://127.0.0.1:8000/metrics"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"--serving {text}: {error}; {example}") from None
    if not valid or any(character.isspace() for character in text):
        raise ConfigError(f"--serving {text}: {example}")
    if parts.username is not None:
        raise ConfigError(f"--serving {text}: give a key as {TOKEN_VARIABLE}, not in the address")
    path = parts.path if parts.path not in ("", "/") else "/metrics"
    return parts._replace(path=path, fragment="").geturl()


# Counters of servers, and the names that they have in Prometheus text.
#
# Names are compared without the prefix `ray_` and with `_` for `:`, which is what vLLM under Ray
# writes. Of several names of a counter the first that the server has is used. Sources:
#   vLLM 0.4.0 to 0.28: vllm/engine/metrics.py, vllm/v1/metrics/loggers.py. Requests are counted
#     from 0.5.0 on; before, the latency histogram counts them. Until 0.3 there are only averages.
#   SGLang 0.4.0 to 0.5.18 (--enable-metrics): srt/observability/metrics_collector.py. Requests are
#     counted from 0.4.2 on. Tokens are added when a request has finished.
#   TGI 1.0 to 3.3: router/src/server.rs; histograms, filled when a request has finished.
#   llama.cpp server (--metrics), b10586: tools/server/server-task.cpp; requests are not counted,
#     and numbers have six digits.


class ServerNames(NamedTuple):
    """Names of a server's counters, and of the gauges of requests that it works on."""

    prefix: str
    prompt_tokens: tuple[str, ...]
    generated_tokens: tuple[str, ...]
    requests: tuple[str, ...]
    working: tuple[str, ...]


SERVERS = {
    "vLLM": ServerNames(
        "vllm_",
        ("vllm_prompt_tokens_total", "vllm_prompt_tokens"),
        ("vllm_generation_tokens_total", "vllm_generation_tokens"),
        (
            "vllm_request_success_total",
            "vllm_request_success",
            "vllm_e2e_request_latency_seconds_count",
        ),
        ("vllm_num_requests_running", "vllm_num_requests_waiting"),
    ),
    "SGLang": ServerNames(
        "sglang_",
        ("sglang_prompt_tokens_total",),
        ("sglang_generation_tokens_total",),
        ("sglang_num_requests_total", "sglang_e2e_request_latency_seconds_count"),
        ("sglang_num_running_reqs", "sglang_num_queue_reqs"),
    ),
    "TGI": ServerNames(
        "tgi_",
        ("tgi_request_input_length_sum",),
        ("tgi_request_generated_tokens_sum",),
        ("tgi_request_success",),
        ("tgi_batch_current_size", "tgi_queue_size"),
    ),
    "llama.cpp": ServerNames(
        "llamacpp_",
        ("llamacpp_prompt_tokens_total",),
        ("llamacpp_tokens_predicted_total",),
        (),
        ("llamacpp_requests_processing", "llamacpp_requests_deferred"),
    ),
}
COUNTERS = ("prompt_tokens", "generated_tokens", "requests")
_KNOWN = frozenset(name for names in SERVERS.values() for group in names[1:] for name in group)
_SAMPLE = re.compile(
    r'(?:ray_)?([a-zA-Z_:][\w:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)', re.ASCII
)
_TYPE = re.compile(r"# TYPE (?:ray_)?([a-zA-Z_:][\w:]*) ", re.ASCII)
MOST_SERIES = 10_000
AVERAGES = {"vllm_avg_generation_throughput_toks_per_s"}


class ServerMetrics(NamedTuple):
    """Samples of one answer by name and labels, and the names that it declares."""

    samples: dict[str, dict[str, float]]
    declared: frozenset[str]

    @property
    def server(self) -> str | None:
        """The server whose names are there; None for something else.

        Some servers leave out a counter until there is something to count.
        """
        for server, names in SERVERS.items():
            if any(name.startswith(names.prefix) for name in (*self.samples, *self.declared)):
                return server
        return None

    def has(self, name: str) -> bool:
        return name in self.samples or name in self.declared

    def sum(self, names: Iterable[str]) -> float | None:
        """Return the sum of gauges; None without any."""
        found = [value for name in names for value in self.samples.get(name, {}).values()]
        return sum(found) if found else None


def parse_metrics(text: str) -> ServerMetrics:
    """Parse the samples of known names from Prometheus text; other lines are skipped."""
    if text.startswith('"'):  # llama.cpp b7010 to b7110 quote the text as JSON
        try:
            text = str(json.loads(text))
        except ValueError:
            text = text.strip('"')
    samples: dict[str, dict[str, float]] = {}
    declared = set()
    for line in text.splitlines():
        if line.startswith("#"):
            found = _TYPE.match(line)
            if found:
                declared.add(found[1].replace(":", "_"))
            continue
        found = _SAMPLE.match(line)
        name = found[1].replace(":", "_") if found else ""
        if not found or name not in _KNOWN:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        series = samples.setdefault(name, {})
        if math.isfinite(value) and value >= 0 and len(series) < MOST_SERIES:
            series[found[2] or ""] = value
    return ServerMetrics(samples, frozenset(declared))


class ServerCounters:
    """Growth of a server's counters from answer to answer, over restarts of the server."""

    def __init__(self, first: ServerMetrics) -> None:
        self.server = first.server or ""
        self.restarts = 0
        self._names: dict[str, str] = {}
        self._last: dict[str, dict[str, float]] = {}
        self.growth(first)
        self.restarts = 0

    def growth(self, metrics: ServerMetrics) -> dict[str, float | None]:
        """Return how much each counter has grown since the last answer; None if not counted.

        A series that is smaller than before began again at 0: the server, or one of its engines,
        was restarted.
        """
        grown: dict[str, float | None] = {}
        restarted = False
        for counter in COUNTERS:
            name = self._name(counter, metrics)
            if name is None:
                grown[counter] = 0.0 if self.counts(counter) else None
                continue
            before, now = self._last.get(name, {}), metrics.samples.get(name, {})
            total = 0.0
            for labels, value in now.items():
                last = before.get(labels, 0.0)
                restarted |= value < last
                total += value if value < last else value - last
            grown[counter] = total
            # a series that is missing this time continues where it was
            self._last[name] = before | now
        self.restarts += restarted
        return grown

    def counts(self, counter: str) -> bool:
        """Return False for a counter that this server, or this version of it, does not have."""
        has_grown = any(value for series in self._last.values() for value in series.values())
        return bool(getattr(SERVERS[self.server], counter)) and (
            counter in self._names or not has_grown
        )

    def _name(self, counter: str, metrics: ServerMetrics) -> str | None:
        """Return the chosen name, which stays the same as soon as the server has one of them."""
        if counter not in self._names:
            names = getattr(SERVERS[self.server], counter)
            found = next((name for name in names if metrics.has(name)), None)
            if found is None:
                return None
            self._names[counter] = found
        return self._names[counter]


# Requests for the metrics. The server is another program, and may answer anything or never.

TIMEOUT_S = 2.0
"""Longest wait for a connection, and between two pieces of an answer."""
DEADLINE_S = 6.0
"""Longest time for one answer."""
LARGEST_BYTES = 16 * 2**20
REDIRECTS = 3
REDIRECTED = (301, 302, 307, 308)
NO_METRICS = (
    "vLLM has them without an option, SGLang needs --enable-metrics, llama.cpp needs --metrics"
)


class NoMetrics(Exception):
    """The reason why an answer is not usable."""


def read_metrics(address: str, token: str = "") -> ServerMetrics:
    """Read the counters of a server once.

    Raises:
        NoMetrics: it does not answer, or with something else.
    """
    metrics = parse_metrics(_get(address, token))
    if metrics.server is None:
        raise NoMetrics("the answer has no counters of vLLM, SGLang, TGI or llama.cpp")
    if metrics.declared >= AVERAGES and not metrics.has("vllm_generation_tokens_total"):
        raise NoMetrics("this vLLM has no counters of tokens; 0.4.0 and later have them")
    return metrics


def _get(address: str, token: str) -> str:
    import http.client
    import time

    end_s = time.monotonic() + DEADLINE_S
    for _ in range(REDIRECTS + 1):
        parts = urlsplit(address)
        try:
            connection = _connection(parts)
            try:
                target = parts.path + (f"?{parts.query}" if parts.query else "")
                headers = {"Accept": "text/plain", "Accept-Encoding": "identity"}
                if token:
                    headers["Authorization"] = f"Bearer {token}"
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                location = answer.getheader("Location")
                if answer.status in REDIRECTED and location:
                    address = _redirected(address, location)
                    continue
                body = bytearray()
                while piece := answer.read1(65_536):
                    body += piece
                    if len(body) > LARGEST_BYTES:
                        raise NoMetrics(f"the answer is longer than {LARGEST_BYTES >> 20} MiB")
                    if time.monotonic() > end_s:
                        raise NoMetrics(f"the answer takes longer than {DEADLINE_S:g} s")
            finally:
                connection.close()
        except TimeoutError:
            raise NoMetrics(f"no answer within {TIMEOUT_S:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            raise NoMetrics(text[:200]) from None
        _check_status(answer.status)
        text = body.decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
        if text.startswith("<"):
            raise NoMetrics("the answer is a web page, not metrics; the path is mostly /metrics")
        return text
    raise NoMetrics(f"more than {REDIRECTS} redirects")


def _connection(parts: SplitResult) -> Any:
    import http.client

    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)


def _redirected(address: str, location: str) -> str:
    there = urljoin(address, location)
    if urlsplit(there)[:2] != urlsplit(address)[:2]:  # the token is for this server
        raise NoMetrics(f"redirected to another server, {there[:200]}")
    return there


def _check_status(status: int) -> None:
    if status in (401, 403):
        raise NoMetrics(f"refused with status {status}; set {TOKEN_VARIABLE} to the server's key")
    if status in (404, 405, 501):
        raise NoMetrics(f"no metrics there (status {status}); {NO_METRICS}")
    if status != 200:
        raise NoMetrics(f"status {status}")


POLL_EVERY_S = 1.0
LATE_EVERY = 4
"""A server that has not answered yet is asked so many times as often: that takes little."""
SHARE_OF_TIME = 0.05
"""Polling takes at most this share of a core, also where the answers are long."""
POINTS_PER_EVENT = 10
DOUBLED_AFTER = 600
"""After so many points of a length, points are twice as long: a week has some thousands."""
JOIN_S = 1.0
"""Wait for an answer under way when the program has ended, before it is given up."""
LOST_S = 10.0
"""A server that has not answered for so long before the end is worth a note."""


class ServingHook:
    """Polls a server while the measured program runs; a hook of `run_command`.

    Nothing here raises into the run, waits for the server when the program has ended, or says the
    same thing twice.

    Args:
        address: of the metrics, checked by `check_address`.
        poll_every_s: seconds from one request to the next.
    """

    def __init__(self, address: str, poll_every_s: float = POLL_EVERY_S) -> None:
        self.totals: ServingTotals | None = None
        self._address = address
        self._poll_every_s = poll_every_s
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        self._session: Session | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._finished = False
        self._thread = threading.Thread(target=self._watch, name="wattloop-serving", daemon=True)
        self._counters: ServerCounters | None = None
        self._fault = ""
        self._failed_first = False
        self._first_s = 0.0
        self._last_s = 0.0
        self._was_idle: bool | None = None
        self._pending: list[ServingPoint] = []
        self._open: ServingPoint | None = None
        self._points: list[ServingPoint] = []
        self._written = 0
        self._sum = ServingSum()

    def begin(self, session: Session, environment: dict[str, str]) -> dict[str, str]:
        """Begin to poll; the environment of the program stays as it is."""
        self._session = session
        session.before_end.append(self._end)
        self._thread.start()
        return environment

    def _watch(self) -> None:
        import http.client  # noqa: F401 - takes a moment, which is not part of the first answer
        from time import thread_time

        assert self._session is not None
        now_s = self._session.clock.now_s
        while not self._finished:
            begin_s, begin_cpu_s = now_s(), thread_time()
            try:
                metrics = read_metrics(self._address, self._token)
                end_s = now_s()
                with self._lock:
                    if not self._finished:
                        self._take(metrics, (begin_s + end_s) / 2)
            except NoMetrics as error:
                self._fault = str(error)
                self._failed_first |= self._counters is None
            except Exception as error:  # noqa: BLE001 - the run matters more than its tokens
                self._session.note(f"tokens are not counted: {type(error).__name__}: {error}")
                return
            cpu_s = thread_time() - begin_cpu_s
            every_s = self._poll_every_s / (LATE_EVERY if self._counters is None else 1)
            wait_s = max(every_s - (now_s() - begin_s), cpu_s / SHARE_OF_TIME)
            if self._ended.wait(max(wait_s, 0.005)):
                return

    def _take(self, metrics: ServerMetrics, time_s: float) -> None:
        idle = _is_idle(metrics)
        if self._counters is None:
            self._counters = ServerCounters(metrics)
            self._first_s = self._last_s = time_s
            self._was_idle = idle
            return
        if metrics.server != self._counters.server:
            self._fault = f"the server is now {metrics.server}, not {self._counters.server}"
            return
        grown = self._counters.growth(metrics)
        length_s = time_s - self._last_s
        known = idle is not None and self._was_idle is not None
        was_idle = bool(idle and self._was_idle and not any(grown.values()))
        idle_s = (length_s if was_idle else 0.0) if known else None
        self._pending.append(
            ServingPoint(self._last_s, time_s, None, idle_s=idle_s, idle_j=None, **grown)
        )
        self._last_s, self._was_idle = time_s, idle
        self._resolve()

    def _resolve(self, *, force: bool = False) -> None:
        """Add the energy of points whose readings are complete, and write them."""
        session = self._session
        assert session is not None
        while self._pending and (force or session.settled(self._pending[0].end_s)):
            point = self._pending.pop(0)
            energy_j = session.between(point.begin_s, point.end_s).energy_j
            if energy_j is None and session.channels and not (force and not self._pending):
                # too short for its sensor: together with the next
                if not self._pending:
                    self._pending = [point]
                    break
                self._pending[0] = _joined((point, self._pending[0]))
                continue
            idle_share = _ratio(point.idle_s, point.end_s - point.begin_s)
            idle_j = None if idle_share is None or energy_j is None else idle_share * energy_j
            values = asdict(point) | {"energy_j": energy_j, "idle_j": idle_j}
            point = ServingPoint(**values)
            self._sum.add(point)
            self._open = point if self._open is None else _joined((self._open, point))
            resolution_s = self._poll_every_s * 2 ** (self._written // DOUBLED_AFTER)
            # half a poll of slack: a point of one poll is not always one poll long
            if self._open.end_s - self._open.begin_s >= resolution_s - 0.5 * self._poll_every_s:
                self._points.append(self._open)
                self._written += 1
                self._open = None
        if force and self._open is not None:
            self._points.append(self._open)
            self._open = None
        if self._points and (force or len(self._points) >= POINTS_PER_EVENT):
            assert self._counters is not None
            now_s = session.clock.now_s()
            session.record(points_event(self._points, now_s, self._counters.server))
            self._points = []

    def _end(self) -> None:
        """Resolve what is left and record the totals; called when the program has ended."""
        session = self._session
        assert session is not None
        self._ended.set()
        self._thread.join(JOIN_S)
        with self._lock:
            self._finished = True
            self._resolve(force=True)
            end_s = session.clock.now_s() if session.ended_s is None else session.ended_s
            self.totals = self._totals(end_s)
        session.record({"type": "serving_totals", "time_s": end_s, **self.totals.to_dict()})

    def _totals(self, end_s: float) -> ServingTotals:
        session, counters = self._session, self._counters
        assert session is not None
        if counters is None:
            reason = self._fault or "the program ended before the first answer"
            return ServingTotals(notes=(f"no tokens from {self._address}: {reason}",))
        notes = []
        if self._sum.points == 0:
            notes.append(f"no tokens from {self._address}: it answered only once")
        if counters.restarts:
            text = f"the server restarted {counters.restarts} time{'s' * (counters.restarts > 1)}"
            notes.append(f"{text}; tokens just before a restart are missing")
        if end_s - self._last_s > LOST_S:
            lost = format_duration(end_s - self._last_s)
            notes.append(f"no tokens of the last {lost} from {self._address}: {self._fault}")
        known: dict[str, Any] = {name: None for name in COUNTERS if not counters.counts(name)}
        if self._sum.points:  # also where a point of it is not known
            known["energy_j"] = session.between(self._first_s, self._last_s).energy_j
        late = (session.started_s, self._first_s) if self._failed_first else None
        return self._sum.totals(
            server=counters.server,
            startup_s=None if late is None else late[1] - late[0],
            startup_j=None if late is None else session.between(*late).energy_j,
            restarts=counters.restarts,
            notes=tuple(notes),
            **known,
        )


class ServingSum:
    """Sum of points; what one of them does not know is unknown of all."""

    def __init__(self, points: Iterable[ServingPoint] = ()) -> None:
        self.points = 0
        self._sum: dict[str, float | None] = dict.fromkeys(SUMMED, 0.0)
        self._time_s = 0.0
        for point in points:
            self.add(point)

    def add(self, point: ServingPoint) -> None:
        self.points += 1
        self._time_s += point.end_s - point.begin_s
        self._sum = {name: _plus(total, getattr(point, name)) for name, total in self._sum.items()}

    def totals(self, **known: Any) -> ServingTotals:
        """Return the totals, with what else is known of the server."""
        sums = self._sum if self.points else {}
        return ServingTotals(**{"duration_s": self._time_s, **sums, **known})


SUMMED = ("energy_j", "prompt_tokens", "generated_tokens", "requests", "idle_s", "idle_j")
COLUMNS = ("begin_s", "end_s", *SUMMED)
LARGEST = 1e15
"""Larger numbers in a journal are not joules, seconds or tokens."""


def points_event(points: Sequence[ServingPoint], time_s: float, server: str) -> dict[str, Any]:
    """Return the event of a journal: one list per field of `ServingPoint`."""
    columns = {name: [_rounded(getattr(point, name)) for point in points] for name in COLUMNS}
    return {"type": "serving", "time_s": time_s, "server": server, **columns}


def read_serving_points(store: Store, record: RunRecord) -> list[ServingPoint]:
    """Return the points of a stored run in order of time."""
    from wattloop.store.run_record import read_events

    points = []
    for event in read_events(store, record.run_id):
        columns = [event.get(name) for name in COLUMNS]
        # journals of other machines may hold anything
        if event.get("type") != "serving" or not all(isinstance(c, list) for c in columns):
            continue
        for values in zip(*columns, strict=False):
            point = dict(zip(COLUMNS, values, strict=True))
            if shape_fault(point, ServingPoint) or not _has_sound_numbers(point):
                continue
            if point["end_s"] > point["begin_s"]:
                points.append(ServingPoint(**point))
    return sorted(points, key=lambda point: point.begin_s)


def read_serving_totals(
    store: Store, record: RunRecord, points: Sequence[ServingPoint] | None = None
) -> ServingTotals | None:
    """Return the totals that `wattloop run --serving` stored; of a crashed run those of its points.

    None for a run without a server.
    """
    from wattloop.store.run_record import read_events

    events = read_events(store, record.run_id)
    ends = [event for event in events if event.get("type") == "serving_totals"]
    if ends and not shape_fault(ends[-1], ServingTotals) and _has_sound_numbers(ends[-1]):
        return ServingTotals.from_dict(ends[-1])
    points = read_serving_points(store, record) if points is None else points
    named = [str(event.get("server")) for event in events if event.get("type") == "serving"]
    server = next((name for name in named if name in SERVERS), "server")
    return ServingSum(points).totals(server=server) if points else None


def _has_sound_numbers(data: Mapping[str, Any]) -> bool:
    numbers = [value for value in data.values() if isinstance(value, int | float)]
    counts = [data.get(name) or 0.0 for name in COUNTERS]
    return all(math.isfinite(n) and abs(n) < LARGEST for n in numbers) and min(counts) >= 0


def _is_idle(metrics: ServerMetrics) -> bool | None:
    names = SERVERS[metrics.server or ""].working
    working = metrics.sum(names)
    return None if working is None else working == 0


def _joined(points: Sequence[ServingPoint]) -> ServingPoint:
    total = ServingSum(points).totals()
    sums = {name: getattr(total, name) for name in SUMMED}
    return ServingPoint(points[0].begin_s, points[-1].end_s, **sums)


def _plus(total: float | None, value: float | None) -> float | None:
    return None if total is None or value is None else total + value


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of is not None and of > 0 else None


def _rounded(value: float | None) -> float | None:
    return value if value is None else round(value, 6)
