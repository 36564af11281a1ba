"""Promises of docs/metrics.md: joules that agree with the store, bounded series, cheap scrapes."""

import json
import math
import random
import re
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest

from tests.fleet.agent.scripted_node import PACKAGE, ScriptedNode, counter, domains_of, gauge
from wattloop.core.records import Scope
from wattloop.fleet.agent.agent import AgentService
from wattloop.fleet.agent.config import AgentConfig
from wattloop.fleet.agent.live_metrics import MOST_JOBS, AgentMetrics

LINE = re.compile(r"(\w+)\{(.*)\} (\S+)(?: # .*)?$")


def values(text: str, name: str, **wanted: str) -> list[float]:
    """Values of a family whose labels have the wanted ones."""
    found = []
    for line in text.splitlines():
        match = LINE.match(line)
        if match and match[1] == name:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            if all(labels.get(key) == value for key, value in wanted.items()):
                found.append(float(match[3]))
    return found


def promtool_series(scraped: list[str], name: str) -> list[dict[str, str]]:
    """Series of a family as promtool takes them; the first scrape is one interval after 0."""
    found: dict[str, list[str]] = {}
    for place, text in enumerate(scraped):
        for line in text.splitlines():
            match = LINE.match(line)
            if match and match[1] == name:
                points = found.setdefault(match[2], [])
                points += ["_"] * (place + 1 - len(points)) + [match[3]]
    return [
        {"series": f"{name}{{{labels}}}", "values": " ".join(points)}
        for labels, points in found.items()
    ]


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A package of 100 W and a GPU of 300 W."""
    scripts = [
        (counter(PACKAGE, Scope.CPU), lambda t: 100.0 * t),
        (gauge("gpu:0", Scope.GPU, device="H200"), lambda t: 300.0),
    ]
    return ScriptedNode(tmp_path, scripts, monkeypatch, interval_s=1.0, cluster="big")


def followed(node: ScriptedNode) -> AgentMetrics:
    agent, metrics = node.start(), AgentMetrics()
    agent.on_step = lambda: metrics.update(agent, agent.faults, 0)
    return metrics


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
def test_joules_of_an_hour_agree_with_the_store(node, tmp_path):
    """Bar: `increase()` over an hour, as Prometheus computes it from scrapes every 15 s, within
    0.5% of what the store has of the job.
    """
    metrics, scraped = followed(node), []
    node.pass_time(5)
    node.event("start", "7", gpus="0", name="train", account="phys")
    for _ in range(240):
        node.pass_time(15, step_s=1.0)
        scraped.append(metrics.render(False))
    node.event("end", "7")
    node.pass_time(20)
    stored = sum(d["energy_j"] for d in domains_of(node.end_of("7")).values())
    # the GPU, and 2 of 8 CPUs of a package with nothing to do
    assert stored == pytest.approx((300.0 + 100.0 * 2 / 8) * 3_600, rel=0.005)
    joules = 'wattloop_job_energy_joules_total{in_total="true", job_id="7"}'
    ratio = f"sum by (user) (increase({joules}[1h])) / {stored}"
    agrees = {"labels": '{user="ada"}', "value": 1}
    test = {
        "interval": "15s",
        "input_series": promtool_series(scraped, "wattloop_job_energy_joules_total"),
        "promql_expr_test": [
            {
                "expr": f"abs({ratio} - 1) < bool 0.005",
                "eval_time": "1h",
                "exp_samples": [agrees],
            }
        ],
    }
    path = tmp_path / "increase.yml"
    path.write_text(json.dumps({"rule_files": [], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # devices count from the start of the agent
    (package_j,) = values(scraped[-1], "wattloop_energy_joules_total", domain=PACKAGE)
    assert package_j == pytest.approx(100.0 * 3_605, rel=0.005)


def test_power_owner_and_provenance(node):
    metrics = followed(node)
    node.event("start", "7", gpus="0", name="train", account="phys")
    node.pass_time(30)
    text = metrics.render(False)
    assert values(text, "wattloop_power_watts", domain="gpu:0") == [pytest.approx(300, rel=0.01)]
    (watts,) = values(
        text, "wattloop_job_power_watts", job_id="7", user="ada", project="phys", domain="gpu:0",
        provenance="measured", cluster="big", node="n1",
    )  # fmt: skip
    assert watts == pytest.approx(300, rel=0.02)
    assert values(text, "wattloop_agent_jobs") == [1.0]
    assert values(text, "wattloop_agent_faults") == [0.0]
    node.event("end", "7")
    node.pass_time(20)
    # a job that ended leaves no series behind
    assert values(metrics.render(False), "wattloop_job_power_watts", job_id="7") == []


def test_power_of_a_job_does_not_jitter_with_the_steps(tmp_path, monkeypatch):
    """Promise: a constant power is shown as constant, whenever the agent reads a counter that is
    renewed 10 times a second; the power of all jobs is that of the device.
    """
    scripts = [
        (counter("gpu:0", Scope.GPU, device="H200")._replace(update_period_s=0.1),
         lambda t: 300.0 * math.floor(10 * t + 1e-6) / 10),
        (gauge("gpu:0", Scope.GPU, device="H200"), lambda t: 300.0),
    ]  # fmt: skip
    node = ScriptedNode(tmp_path, scripts, monkeypatch, interval_s=1.0, cluster="big")
    metrics = followed(node)
    node.event("start", "7", gpus="0", name="train")
    node.pass_time(5)
    dice = random.Random(1)
    shown = []
    for _ in range(60):
        node.pass_time(dice.uniform(0.9, 1.1), step_s=0.37)
        shown += values(
            metrics.render(False), "wattloop_job_power_watts", job_id="7", domain="gpu:0"
        )
    assert len(shown) == 60
    assert shown == pytest.approx([300.0] * 60, rel=0.005)


def test_hostile_names_are_one_line(node):
    metrics = followed(node)
    node.event("start", "7", name='a"} 1\\nevil{x="', user="\x1b[31mroot", project="p" * 500)
    node.pass_time(5)
    text = metrics.render(True)
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("evil")]
    assert max(len(label) for label in re.findall(r'"([^"]*)"', text)) <= 130
    assert text.endswith("# EOF\n")


def test_the_number_of_series_is_bounded(node, monkeypatch):
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 3)
    assert MOST_JOBS == 256
    metrics = followed(node)
    for job in range(8):
        node.event("start", str(job), cpus="1")
    node.pass_time(10)
    text = metrics.render(False)
    jobs = set(re.findall(r'wattloop_job_energy_joules_total\{.*?job_id="(\w+)"', text))
    assert "other" in jobs
    assert len(jobs) <= 5
    assert values(text, "wattloop_agent_jobs") == [8.0]


def test_joules_of_the_other_jobs_never_fall(node, monkeypatch):
    """Promise: what jobs beyond the limit used stays in `other` after their end, and every joule
    is in one series only, with the labels of the sums in rules and dashboard.
    """
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 3)
    metrics = followed(node)
    name, shown, own = "wattloop_job_energy_joules_total", [], {}

    def follow(seconds: int) -> None:
        for _ in range(seconds):
            node.pass_time(1)
            text = metrics.render(False)
            shown.append(sum(values(text, name, job_id="other", domain=PACKAGE)))
            for line in text.splitlines():
                found = LINE.match(line)
                if found and found[1] == name and PACKAGE in found[2] and "other" not in found[2]:
                    own[found[2]] = max(own.get(found[2], 0.0), float(found[3]))

    for job in range(8):
        node.event("start", str(job), cpus="1")
        follow(2)
    for job in range(8):  # those with series of their own end first, and leave room
        node.event("end", str(job))
        follow(5)
    node.event("start", "8", cpus="1")
    follow(10)
    assert shown == sorted(shown)
    wanted = {"job_id": "other", "in_total": "true", "domain": PACKAGE, "provenance": "modelled"}
    assert values(metrics.render(False), name, cluster="big", user="", **wanted) == shown[-1:]
    assert shown[-1] > 0
    assert any('job_id="8"' in labels for labels in own)
    assert not any(f'job_id="{job}"' in labels for labels in own for job in range(3, 8))
    # the package's joules are those of all series; what a job used after the last step before its
    # end was recorded is the difference
    (package_j,) = values(metrics.render(False), "wattloop_energy_joules_total", domain=PACKAGE)
    assert shown[-1] + sum(own.values()) == pytest.approx(package_j, rel=0.02)


def test_the_other_jobs_begin_at_zero_with_a_restarted_agent(node, monkeypatch):
    """A fall to a value above zero would add joules of before the restart again."""
    monkeypatch.setattr("wattloop.fleet.agent.live_metrics.MOST_JOBS", 1)
    metrics = followed(node)
    for job in range(4):
        node.event("start", str(job), cpus="1")
    node.pass_time(60)
    wanted = {"job_id": "other", "in_total": "true", "domain": PACKAGE}
    (before_j,) = values(metrics.render(False), "wattloop_job_energy_joules_total", **wanted)
    node.kill()
    node.pass_time(5)
    metrics = followed(node)
    node.pass_time(5)
    (after_j,) = values(metrics.render(False), "wattloop_job_energy_joules_total", **wanted)
    assert 0 < after_j < before_j / 4


def test_openmetrics_names_the_run_of_a_job(node):
    metrics = followed(node)
    node.event("start", "7", gpus="0")
    node.pass_time(5)
    text = metrics.render(True)
    assert "# TYPE wattloop_job_energy_joules counter" in text
    assert "# UNIT wattloop_job_energy_joules joules" in text
    assert re.search(r'job_id="7".*\} \S+ # \{run="[\w-]+"\} ', text)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
def test_promtool_accepts_it(node):
    metrics = followed(node)
    node.event("start", "7", gpus="0", name="train")
    node.pass_time(10)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics.render(False), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_real_agent_answers_scrapes(tmp_path, monkeypatch):
    """The endpoint of a running service: metrics, health, and nothing else."""
    scripts = [(counter(PACKAGE, Scope.CPU), lambda t: 50.0 * t)]
    node = ScriptedNode(tmp_path, scripts, monkeypatch, metrics="127.0.0.1:0", interval_s=0.1)
    from wattloop.core.clock import RealClock
    from wattloop.core.settings import Settings
    from wattloop.fleet.agent.config import AgentContext

    node.clock = RealClock()
    config = AgentConfig.model_validate(node.config)
    context = AgentContext("n1", config, Settings(), node.host, node.clock, {}, 8)
    service = AgentService(context)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        text = ""
        while "wattloop_energy_joules_total" not in text:
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
            if service.metrics_port is not None:
                url = f"http://127.0.0.1:{service.metrics_port}/metrics"
                text = urllib.request.urlopen(url, timeout=600).read().decode()
        health = urllib.request.urlopen(url.replace("metrics", "healthz"), timeout=600)
        assert health.read() == b"ok\n"
    finally:
        service.stop.set()
        thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize("text", ["", "x", "localhost", "1:2:x", "99999", 3.5])
def test_a_wrong_address_is_refused(text):
    with pytest.raises(ValueError, match="9464"):
        AgentConfig.model_validate({"metrics": text})


def test_an_address_in_use_is_said(tmp_path):
    import socket

    from wattloop.core.errors import ConfigError
    from wattloop.measure.metrics_endpoint import MetricsEndpoint

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="choose another port"):
            MetricsEndpoint(str(port), lambda _: "")


def test_clients_that_send_nothing_do_not_block_the_next(monkeypatch, caplog):
    """Promise: a scrape is answered at once, however many connections are silent for however long;
    the oldest of too many are closed, which the log says.
    """
    import socket

    from wattloop.measure import metrics_endpoint

    monkeypatch.setattr(metrics_endpoint, "REQUEST_S", 3_600.0)
    monkeypatch.setattr(metrics_endpoint._Handler, "timeout", 3_600.0)
    most = metrics_endpoint.MOST_WAITING
    with metrics_endpoint.MetricsEndpoint("0", lambda _: "x 1\n") as endpoint:
        silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(most + 8)]
        url = f"http://127.0.0.1:{endpoint.port}/metrics"
        for _ in range(3):
            assert urllib.request.urlopen(url, timeout=600).read() == b"x 1\n"
        assert silent[0].recv(1) == b""  # closed by the server
        for each in silent:
            each.close()
    assert "silent connections" in caplog.text


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_a_real_prometheus_scrapes_them(node, tmp_path):
    """A real Prometheus takes the exposition: joules of the meter, with the labels of the job."""
    from urllib.parse import quote

    from tests.support.free_ports import PortBlock
    from wattloop.measure.metrics_endpoint import MetricsEndpoint

    metrics = followed(node)
    node.event("start", "7", gpus="0", account="phys")
    node.pass_time(5)
    port = PortBlock().take()
    with MetricsEndpoint("127.0.0.1:0", metrics.render) as endpoint:
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: wattloop\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{endpoint.port}']}}]\n"
        )
        server = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            query = quote('wattloop_job_energy_joules_total{job_id="7", domain="gpu:0"}')
            url = f"http://127.0.0.1:{port}/api/v1/query?query={query}"
            found: list = []
            deadline = time.monotonic() + 180
            while not found:
                assert time.monotonic() < deadline, "Prometheus has no sample"
                time.sleep(0.2)
                try:
                    found = json.load(urllib.request.urlopen(url, timeout=600))["data"]["result"]
                except OSError:
                    continue  # it is starting
        finally:
            server.kill()
            server.wait()
    (sample,) = found
    assert sample["metric"]["project"] == "phys"
    assert sample["metric"]["provenance"] == "measured"
    expected = values(
        metrics.render(False), "wattloop_job_energy_joules_total", job_id="7", domain="gpu:0"
    )
    assert [float(sample["value"][1])] == expected
