"""Promises of serving: tokens and requests of a language-model server, joined with energy."""

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.integrations.test_stored_steps import add_run
from tests.support.model_server import KINDS, answering, silent, vllm
from tests.support.synthetic_energy import about_j
from wattloop.core.errors import ConfigError
from wattloop.integrations import serving
from wattloop.integrations.serving import (
    NoMetrics,
    ServerCounters,
    ServingHook,
    ServingTotals,
    check_address,
    format_serving,
    parse_metrics,
    read_metrics,
    read_serving_points,
    read_serving_totals,
)
from wattloop.measure.session import Session
from wattloop.store.database import Store, open_store
from wattloop.store.runs import find_run

SERVER_OF = {
    "vllm": "vLLM",
    "vllm 0.4": "vLLM",
    "vllm on Ray": "vLLM",
    "sglang": "SGLang",
    "tgi": "TGI",
    "llama.cpp": "llama.cpp",
    "quoted llama.cpp": "llama.cpp",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db") as store:
        yield store


class Answers:
    """Answers of a server in order; the last one repeats."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return self._texts[min(self.count, len(self._texts)) - 1]


def steady(answers: int = 400) -> Answers:
    """Return answers with ten more prompt tokens, twenty generated tokens and one request each."""
    return Answers(vllm((5_000 + 10 * n, 7_000 + 20 * n, 100 + n, 1)) for n in range(answers))


def watch(answers: Answers, polls: int, poll_every_s: float = 0.03) -> ServingTotals:
    """Poll a server this many times, as a run does."""
    with answering(answers) as address:
        hook = ServingHook(address, poll_every_s)
        session = Session.open(name="server")
        assert hook.begin(session, {"A": "1"}) == {"A": "1"}
        end_s = time.monotonic() + 120
        while answers.count < polls and time.monotonic() < end_s:
            time.sleep(0.005)
        session.close()
    assert hook.totals is not None
    return hook.totals


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_every_server(kind: str) -> None:
    """Promise: prompt tokens, generated tokens and requests are found for each server and
    version.
    """
    before, after = KINDS[kind]((100, 1_000, 8, 1)), KINDS[kind]((300, 1_500, 12, 0))
    metrics = parse_metrics(before)
    assert metrics.server == SERVER_OF[kind]
    counters = ServerCounters(metrics)
    requests = None if "llama" in kind else 4
    expected = {"prompt_tokens": 200, "generated_tokens": 500, "requests": requests}
    assert counters.growth(parse_metrics(after)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_before_its_first_request(kind: str) -> None:
    """Promise: counters that appear with the first request are counted from 0."""
    counters = ServerCounters(parse_metrics(KINDS[kind]((0, 0, 0, 0))))
    assert counters.growth(parse_metrics(KINDS[kind]((0, 0, 0, 0))))["generated_tokens"] == 0
    grown = counters.growth(parse_metrics(KINDS[kind]((30, 70, 4, 1))))
    assert (grown["prompt_tokens"], grown["generated_tokens"]) == (30, 70)
    assert counters.counts("requests") == ("llama" not in kind)


def test_counters_that_begin_again() -> None:
    """Promise: after a restart the new value counts; an engine that is missing once does not."""
    counters = ServerCounters(parse_metrics(vllm((100, 1_000, 8, 0), engines=2)))
    assert counters.growth(parse_metrics(vllm((10, 20, 4, 0))))["generated_tokens"] == 20
    assert counters.restarts == 1
    two = parse_metrics(vllm((40, 100, 8, 0), engines=2))
    # engine 0: 20 -> 50; engine 1 was at 500 and is at 50 now
    assert counters.growth(two)["generated_tokens"] == 30 + 50
    assert counters.restarts == 2
    one = parse_metrics(vllm((20, 50, 8, 0)))
    assert counters.growth(one)["generated_tokens"] == 0
    assert counters.growth(two)["generated_tokens"] == 0


def test_odd_lines_are_skipped() -> None:
    """Promise: a value that is not a number changes nothing."""
    text = vllm((1, 2, 4, 0)) + (
        'vllm:generation_tokens_total{engine="9"} NaN\n'
        'vllm:generation_tokens_total{engine="8"} -5\n'
        'vllm:generation_tokens_total{engine="7"} +Inf\n'
        'vllm:generation_tokens_total{engine="6\n'
        "vllm:generation_tokens_total\n"
        'vllm:generation_tokens_total{a="\\"}"} 40 1700000000000\n'
        "\x00\ufffd{{{{\n"
        "other_total 7\n"
    )
    assert parse_metrics(text).sum(["vllm_generation_tokens_total"]) == 42


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/metrics"),
        ("http://localhost:8000/", "http://localhost:8000/metrics"),
        ("https://[::1]:30000/engine/metrics?a=1#x", "https://[::1]:30000/engine/metrics?a=1"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert check_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "8000", "127.0.0.1:8000", "ftp://a/metrics", "http://", "http://a:99999", "http://a b/",
     "http://user:secret@a/metrics", "http://[::1"],
)  # fmt: skip
def test_wrong_addresses_name_a_right_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127|WATTLOOP_SERVING_TOKEN"):
        check_address(text)


OLD_VLLM = """# TYPE vllm:avg_generation_throughput_toks_per_s gauge
vllm:avg_generation_throughput_toks_per_s 31.5
"""


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("<!doctype html><html>vllm:generation_tokens_total 5</html>", 200, "web page"),
        ("go_goroutines 7\n", 200, "no counters of vLLM"),
        ("", 200, "no counters of vLLM"),
        ("\x00\xff" * 1_000, 200, "no counters of vLLM"),
        (OLD_VLLM, 200, "0.4.0 and later"),
        ("{}", 404, "--enable-metrics"),
        ("{}", 501, "llama.cpp needs --metrics"),
        ("{}", 401, "WATTLOOP_SERVING_TOKEN"),
        ("{}", 503, "status 503"),
    ],
)
def test_other_answers_give_a_reason(text: str, status: int, reason: str) -> None:
    with answering(lambda: text, status) as address, pytest.raises(NoMetrics, match=reason):
        read_metrics(address)


def test_no_server_and_endless_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: no request waits longer than its limit, and no answer fills the memory."""
    monkeypatch.setattr(serving, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(serving, "DEADLINE_S", 0.1)
    monkeypatch.setattr(serving, "LARGEST_BYTES", 2**20)
    with silent() as address, pytest.raises(NoMetrics, match=r"no answer within 0\.05 s"):
        read_metrics(address)
    with pytest.raises(NoMetrics, match="refused"):
        read_metrics(address)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\nvllm:"
    with silent(head) as address, pytest.raises(NoMetrics, match=r"within 0\.05 s"):
        read_metrics(address)
    with silent(b"SSH-2.0-OpenSSH_9.2\r\n") as address, pytest.raises(NoMetrics, match="SSH"):
        read_metrics(address)
    huge = b"x" * (2**20 + 1)
    with answering(lambda: huge) as address, pytest.raises(NoMetrics, match="longer than 1 MiB"):
        read_metrics(address)


def test_redirects_stay_on_the_server() -> None:
    """Promise: the key of a server is not sent to another one."""
    to_itself = answering(lambda: "", 307, Location="/metrics")
    with to_itself as address, pytest.raises(NoMetrics, match="more than 3 redirects"):
        read_metrics(address)
    away = answering(lambda: "", 307, Location="http://127.0.0.2:1/metrics")
    with away as address, pytest.raises(NoMetrics, match="redirected to another server"):
        read_metrics(address, "secret")


def test_tokens_and_energy(machine: Machine) -> None:
    """Promise: joules per token are the energy between answers over the tokens between them."""
    totals = watch(steady(), 15)
    assert totals.server == "vLLM"
    assert totals.notes == ()
    assert totals.startup_s is None
    assert totals.requests
    assert totals.generated_tokens == pytest.approx(20 * totals.requests)
    assert totals.prompt_tokens == pytest.approx(10 * totals.requests)
    assert totals.energy_j == about_j(machine.power_w, totals.duration_s, machine.driver)
    assert totals.idle_s == 0
    costs = totals.costs
    assert set(costs) == set(serving.COSTS)
    assert costs["generated_token_j"] == pytest.approx(1.5 * costs["token_j"])
    assert costs["request_j"] == pytest.approx(20 * costs["generated_token_j"])
    per_s, per_w = costs["generated_tokens_per_s"], costs["generated_tokens_per_s_per_w"]
    assert per_s / per_w == pytest.approx(totals.energy_j / totals.duration_s)
    (journal,) = machine.journals()
    points = [event for event in journal.events if event["type"] == "serving"]
    counted = sum(tokens for event in points for tokens in event["generated_tokens"])
    assert counted == totals.generated_tokens


def test_a_point_too_short_for_its_sensor_is_merged_with_the_next(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: no token and no joule is lost where a sensor has not moved between two answers."""
    calls = itertools.count()
    between = Session.between

    def sometimes(self: Session, begin_s: float, end_s: float, **more: Any) -> Any:
        result = between(self, begin_s, end_s, **more)
        return result if next(calls) % 2 or end_s - begin_s > 0.5 else result._replace(domains=())

    monkeypatch.setattr(Session, "between", sometimes)
    totals = watch(steady(), 12)
    assert totals.requests
    assert totals.generated_tokens == 20 * totals.requests
    (journal,) = machine.journals()
    events = [event for event in journal.events if event["type"] == "serving"]
    assert sum(sum(event["generated_tokens"]) for event in events) == totals.generated_tokens
    assert sum(event["energy_j"].count(None) for event in events) <= 1


def test_a_server_without_work_is_idle(machine: Machine) -> None:
    """Promise: energy of an idle server is known, and is not a cost per token."""
    totals = watch(Answers([vllm((5, 7, 1, 0))]), 8)
    assert totals.idle_s == pytest.approx(totals.duration_s)
    assert totals.idle_j == pytest.approx(totals.energy_j)
    assert totals.generated_tokens == 0
    assert set(totals.costs) == {"generated_tokens_per_s", "generated_tokens_per_s_per_w"}
    assert format_serving(totals)[0] == "vLLM: 0 tokens generated after 0 of prompts for 0 requests"


def test_a_late_server_that_restarts_and_vanishes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: start-up is separate, a restart loses no energy, and the end is noted once."""
    monkeypatch.setattr(serving, "LOST_S", 0.0)
    texts = ["", "", *(vllm((10 * n, 10 * n, n, 1)) for n in (0, 1, 2, 3, 0, 1)), "gone"]
    totals = watch(Answers(texts), len(texts) + 1)
    assert totals.startup_s is not None
    assert totals.startup_s > 0
    assert totals.restarts == 1
    assert totals.generated_tokens == 30 + 10
    restarted, lost = totals.notes
    assert restarted == "the server restarted 1 time; tokens just before a restart are missing"
    assert lost.startswith("no tokens of the last ")
    assert "no counters of vLLM" in lost


@pytest.mark.parametrize("send", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_a_server_that_hangs_does_not_delay_the_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, send: bytes
) -> None:
    """Promise: the run ends although the server never answers, with one note."""
    monkeypatch.setattr(serving, "JOIN_S", 0.05)
    monkeypatch.setattr(serving, "TIMEOUT_S", 60.0)
    with silent(send) as address:
        hook = ServingHook(address)
        session = Session.open(name="server")
        hook.begin(session, {})
        session.close()
    totals = hook.totals
    assert totals is not None
    assert format_serving(totals) == [
        f"no tokens from {address}: the program ended before the first answer"
    ]
    assert totals.to_dict()["generated_token_j"] is None


def test_an_error_ends_the_polling_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: the run is measured even where the join of tokens fails."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(serving, "read_metrics", broken)
    session = Session.open(name="server")
    hook = ServingHook("http://127.0.0.1:1/metrics", 0.01)
    hook.begin(session, {})
    hook._thread.join(20)
    run = session.close()
    assert run.energy_j
    assert session.notes == ["tokens are not counted: ZeroDivisionError: oops"]


def test_long_runs_have_fewer_and_longer_points(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the points of a run of weeks are some thousands, and lose no token."""
    monkeypatch.setattr(serving, "DOUBLED_AFTER", 3)
    totals = watch(steady(), 24, poll_every_s=0.02)
    (journal,) = machine.journals()
    events = [event for event in journal.events if event["type"] == "serving"]
    assert sum(len(event["end_s"]) for event in events) < (totals.requests or 0) / 1.5
    assert sum(sum(event["generated_tokens"]) for event in events) == totals.generated_tokens


EVENT: dict[str, Any] = {
    "type": "serving",
    "time_s": 1_004.0,
    "server": "llama.cpp",
    "begin_s": [1_001.0, 1_002.0],
    "end_s": [1_002.0, 1_004.0],
    "energy_j": [50.0, 100.0],
    "prompt_tokens": [100.0, 0.0],
    "generated_tokens": [30.0, 20.0],
    "requests": [None, None],
    "idle_s": [0.0, 1.0],
    "idle_j": [0.0, 50.0],
}
TOTALS: dict[str, Any] = {
    "type": "serving_totals",
    "time_s": 1_005.0,
    "duration_s": 3.0,
    "server": "llama.cpp",
    "energy_j": 150.0,
    "prompt_tokens": 100.0,
    "generated_tokens": 50.0,
    "requests": None,
    "idle_s": 1.0,
    "idle_j": 50.0,
    "startup_s": 1.0,
    "startup_j": 40.0,
    "restarts": 0,
    "notes": [],
}


def test_a_stored_run_has_its_tokens(store: Store) -> None:
    """Promise: totals and curve are read back; a crashed run has those of its points."""
    add_run(store, EVENT, TOTALS)
    add_run(store, EVENT, run_id="crashed")
    add_run(store, run_id="none")
    stored = read_serving_totals(store, find_run(store, "r1"))
    crashed = read_serving_totals(store, find_run(store, "crashed"))
    assert stored is not None
    assert crashed is not None
    assert read_serving_totals(store, find_run(store, "none")) is None
    assert stored.costs == crashed.costs
    assert crashed.server == "llama.cpp"
    assert stored.costs["generated_token_j"] == 3.0
    assert len(read_serving_points(store, find_run(store, "r1"))) == 2
    assert format_serving(stored) == [
        "llama.cpp: 50 tokens generated after 100 of prompts, 3.00 J per generated token, "
        "1.00 J per token",
        "16.67 tokens/s, 0.3333 tokens/s per W, idle 33% (50.0 J), start-up 1.00 s (40.0 J)",
    ]


ODD: list[Any] = [None, True, -1, 1e308, float("nan"), "x", [], {}, [1], ["x", {}], [1e400, 2]]


@pytest.mark.parametrize("field", [*EVENT, *sorted(TOTALS.keys() - EVENT.keys())])
def test_odd_journals_are_read_without_a_fault(store: Store, field: str) -> None:
    """Promise: a journal of another machine may have any content, and the run is still shown."""
    for n, odd in enumerate(ODD):
        add_run(store, EVENT | {field: odd}, TOTALS | {field: odd}, run_id=f"r{n}")
        record = find_run(store, f"r{n}")
        totals = read_serving_totals(store, record)
        assert totals is None or isinstance(format_serving(totals), list)
        assert all(point.end_s > point.begin_s for point in read_serving_points(store, record))
