"""Promises of the Kubernetes driver: a policy decides, and no job waits for a killed driver."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.accounting.test_grid import world as grids  # noqa: F401 - a fixture: real HTTP
from tests.support.kubernetes_api import KubernetesApi, pod
from tests.support.kubernetes_cluster import Controllers, job, node
from wattloop.accounting.carbon import IntensityPoint
from wattloop.accounting.grid import GridBasis, GridSeries, provider_from, read_forecast
from wattloop.cli.main import main
from wattloop.core.errors import ConfigError, GridUnavailable, KubernetesAway, KubernetesError
from wattloop.fleet.kubernetes.api_client import ApiAddress, KubernetesClient
from wattloop.schedule.driver.event_log import DriverLog
from wattloop.schedule.driver.managed_cluster import (
    ClusterOptions,
    DriverSettings,
    build_managed_cluster,
)
from wattloop.schedule.driver.rounds import run_loop
from wattloop.schedule.kubernetes.driver import (
    DriverLease,
    Forecast,
    KubernetesDriver,
    KubernetesObserver,
    is_expired,
    latest_start,
)
from wattloop.schedule.kubernetes.queue import KubernetesQueue, release_all
from wattloop.schedule.policies.helios import Helios
from wattloop.schedule.policies.registry import policy_from

KUEUE = "kueue.x-k8s.io"


class World:
    """Two nodes of four GPUs, their controllers, and drivers."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        for name in ("n1", "n2"):
            api.add(node(name))
        self.controllers = Controllers(self.client())
        self.said: list[str] = []

    def client(self) -> KubernetesClient:
        return KubernetesClient(ApiAddress(url=self.api.url, timeout_s=5.0))

    def parts(self, policy: str, budget: Any, kueue: bool) -> tuple[Any, ...]:
        queue, chosen = KubernetesQueue(self.client(), kueue=kueue), policy_from(policy)
        asked = ClusterOptions(
            partitions=("kubernetes",), gpus_only=True, oracle="table", budget=budget
        )
        site = build_managed_cluster(queue.nodes(), asked, chosen)
        log = DriverLog(None, lambda kind, text: self.said.append(f"{kind}: {text}"))
        return queue, site, chosen, log

    def driver(
        self, policy: str = "fifo", budget: Any = None, *, kueue: bool = False, holder: str = "d1",
        lease_s: float = 60.0, forecast: Forecast | None = None,
    ) -> KubernetesDriver:  # fmt: skip
        queue, site, chosen, log = self.parts(policy, budget, kueue)
        lease = DriverLease(self.client(), "wattloop", holder, lease_s)
        settings = DriverSettings(standby=False, nodes_every_s=0.0)
        return KubernetesDriver(
            queue, site, chosen, lease, log=log, settings=settings, forecast=forecast
        )

    def suspended(self, namespace: str = "default") -> list[str]:
        return sorted(
            item["metadata"]["name"]
            for item in self.api.all("jobs", "batch")
            if item["spec"].get("suspend")
        )

    def placed(self) -> dict[str, str]:
        return {
            p["metadata"]["ownerReferences"][0]["name"]: p["spec"]["nodeName"]
            for p in self.api.all("pods")
            if p["spec"].get("nodeName") and "ownerReferences" in p["metadata"]
        }


@pytest.fixture
def world() -> Iterator[World]:
    with KubernetesApi() as api:
        yield World(api)


def test_jobs_start_in_the_policys_order_as_gpus_become_free(world: World) -> None:
    for number in range(5):
        world.api.add(job(f"j{number}", gpus=2))
    driver = world.driver()
    driver.begin()
    report = driver.round()
    assert sorted(report.starts) == [f"Job/default/j{n}" for n in range(4)]
    assert world.suspended() == ["j4"]
    assert driver.round().starts == []  # released and not placed yet: their GPUs count
    world.controllers.step()
    world.controllers.step()
    assert set(world.placed()) == {"j0", "j1", "j2", "j3"}
    assert driver.round().starts == []
    world.controllers._runs_s = lambda name: -1.0 if name == "j1" else 1e9
    world.controllers.step()
    assert driver.round().starts == ["Job/default/j4"]
    assert world.suspended() == []


def test_a_budget_holds_and_what_others_run_counts(world: World) -> None:
    """A foreign pod has two of eight GPUs: six jobs start without a budget, fewer within one."""
    world.api.add(pod("foreign", gpus=2, node="n1"))
    for number in range(6):
        world.api.add(job(f"j{number}"))
    free = world.driver()
    free.begin()
    report = free.round()
    assert report.free_gpus == len(report.starts) == 6
    assert world.suspended() == []
    for number in range(6):
        world.api.change("jobs", "default", f"j{number}", {"spec": {"suspend": True}}, "batch")
    budget_w = report.power_w + 900
    tight = world.driver("fifo", f"{budget_w:.0f} W")
    tight.begin()
    report = tight.round()
    assert 0 < len(report.starts) < 6
    assert report.short_of_power or report.budget_w == pytest.approx(budget_w, abs=1)


def test_jobs_without_the_label_are_never_touched(world: World) -> None:
    world.api.add(job("mine", managed=False))
    driver = world.driver()
    driver.begin()
    driver.round()
    driver.restore()
    assert world.suspended() == ["mine"]
    assert release_all(KubernetesQueue(world.client()), "test")[0] == []


def test_an_observer_changes_nothing_and_says_what_it_would_do(world: World) -> None:
    world.api.add(job("j0", annotations={"wattloop.dev/job": "wattloop:model=resnet-50"}))
    before = json.dumps(
        [world.api.all("jobs", "batch"), world.api.all("leases", "coordination.k8s.io")]
    )
    queue, site, chosen, log = world.parts("zeus", None, False)
    observer = KubernetesObserver(queue, site, chosen, log=log, settings=DriverSettings())
    run_loop(observer, threading.Event(), rounds=2)
    assert observer.table.rows["Job/default/j0"].would_s is not None
    assert "kubectl" in observer.commands[0]
    assert before == json.dumps(
        [world.api.all("jobs", "batch"), world.api.all("leases", "coordination.k8s.io")]
    )
    assert not any(r.startswith(("PATCH", "POST", "PUT", "DELETE")) for r in world.api.requests)


def test_a_policy_that_sets_caps_writes_them_for_the_nodes_agent(world: World) -> None:
    """The cap is in the template while the Job is suspended; a cap of the user's own stays."""
    described = {"wattloop.dev/job": "wattloop:model=resnet-50,batch=128,work=1000000,caps=0.6"}
    world.api.add(job("j0", annotations=described))
    own = {"wattloop.dev/power-cap": "350W"}
    world.api.add(job("j1", annotations=described, template_annotations=own))
    driver = world.driver("helios")
    driver.begin()
    driver.round()
    assert world.suspended() == []
    caps = [
        world.api.get("jobs", "default", f"j{n}", "batch")["spec"]["template"]["metadata"]
        .get("annotations", {}).get("wattloop.dev/power-cap")
        for n in range(2)
    ]  # fmt: skip
    assert caps[0] is not None
    assert 100 <= float(caps[0].rstrip("W")) <= 400
    assert caps[1] == "350W"


# -- a killed driver ----------------------------------------------------------------------


def test_a_driver_shows_its_policy_the_delay_and_an_observer_does_not(world: World) -> None:
    """Helios keeps its promise by it; what it only observes is late by other decisions."""
    world.api.add(job("one", gpus=4))
    driver = world.driver("helios")
    driver.begin()
    driver.round()
    assert isinstance(driver.policy, Helios)
    assert driver.policy._late == pytest.approx(0.0, abs=1e-9)
    queue, site, policy, log = world.parts("helios", None, kueue=False)
    KubernetesObserver(queue, site, policy, log=log, settings=DriverSettings()).round()
    assert policy._late is None
    assert not [text for text in world.said if "delay" in text]


def test_a_driver_that_stops_releases_everything(world: World) -> None:
    for number in range(6):
        world.api.add(job(f"j{number}", gpus=4))
    driver = world.driver()
    run_loop(driver, threading.Event(), rounds=2)
    assert world.suspended() == []
    assert driver.lease.is_expired()


def test_a_killed_drivers_jobs_are_released_when_its_lease_expires(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        world.api.add(job(f"j{number}", gpus=4))
    killed = world.driver()
    killed.begin()
    killed.round()
    assert len(world.suspended()) == 4
    words = ["k8s", "release", "--if-expired", "--api", world.api.url, "--lease-namespace"]
    assert main([*words, "wattloop"]) == 0
    assert len(world.suspended()) == 4  # it may be running: its lease has not expired
    old = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    world.api.change("leases", "wattloop", "wattloop-driver", old, "coordination.k8s.io")
    assert main([*words, "wattloop"]) == 0
    assert world.suspended() == []
    assert "4 released" in capsys.readouterr().out


def test_a_restarted_driver_goes_on_and_a_second_one_waits(world: World) -> None:
    for number in range(3):
        world.api.add(job(f"j{number}", gpus=4))
    first = world.driver()
    first.begin()
    first.round()
    again = world.driver()  # the same pod, restarted: only the objects have its state
    again.begin()
    assert again.round().starts == []
    other = world.driver(holder="d2")
    with pytest.raises(KubernetesAway, match="another driver, d1"):
        other.begin()
    other.restore()
    assert world.suspended() == ["j2"]  # not for it to release
    again.restore()
    other.begin()


def test_of_two_drivers_that_find_the_lease_expired_one_gets_it(world: World) -> None:
    leases = [DriverLease(world.client(), "wattloop", name) for name in ("a", "b")]
    first = leases[0]._read()
    assert first is None
    leases[0].renew()
    stale = leases[1]._read()
    leases[0].renewed_s = float("-inf")
    leases[0].renew()
    with pytest.raises(KubernetesError) as conflict:
        world.client().replace(leases[1]._path, {**(stale or {}), "spec": {"holderIdentity": "b"}})
    assert conflict.value.status == 409


@pytest.mark.parametrize(
    ("spec", "expired"),
    [
        (None, True),
        ({}, True),
        ({"holderIdentity": "a"}, True),
        ({"holderIdentity": "a", "leaseDurationSeconds": "x", "renewTime": 3}, True),
        ("now", False),
        ("old", True),
        ("far future", True),
    ],
)
def test_no_strange_lease_holds_jobs_for_ever(spec: Any, expired: bool) -> None:
    now_s = 1_800_000_000.0
    if isinstance(spec, str):
        at_s = now_s + {"now": -10, "old": -100, "far future": 1e6}[spec]
        text = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(at_s))
        spec = {"holderIdentity": "a", "leaseDurationSeconds": 60, "renewTime": text}
    assert is_expired(None if spec is None else {"spec": spec}, now_s) is expired


def test_a_preempted_job_is_marked_and_released(world: World) -> None:
    world.api.add(job("j0", gpus=4, annotations={"wattloop.dev/preemptible": "true"}))
    driver = world.driver()
    driver.begin()
    driver.round()
    world.controllers.step()
    world.controllers.step()
    (live,) = [j for j in driver.queue.jobs() if j.key == "Job/default/j0"]
    assert live.may_requeue
    from wattloop.schedule.kubernetes.queue import suspend_patch

    assert driver._patch(live, *suspend_patch(driver.queue.objects[live.key]))
    world.controllers.step()
    assert world.suspended() == ["j0"]
    assert world.placed() == {}
    assert release_all(KubernetesQueue(world.client()), "test") == (["default/j0"], [])
    assert world.suspended() == []


# -- a faulty API server ------------------------------------------------------------------


def test_an_api_server_that_goes_away_is_waited_for(world: World) -> None:
    world.api.add(job("j0"))
    driver = world.driver()
    driver.begin()
    world.api.fault = lambda handler: handler.send_error(503) or True  # type: ignore[func-returns-value]  # it answers
    with pytest.raises(KubernetesAway):
        driver.round()
    world.api.fault = None
    assert driver.round().starts == ["Job/default/j0"]


def test_a_conflict_leaves_the_job_for_the_next_round(world: World) -> None:
    world.api.add(job("j0"))
    driver = world.driver()
    driver.begin()

    def fault(handler: Any) -> bool:
        if handler.command == "PATCH":
            world.api.fault = None
            handler._send(409, b'{"message": "changed"}')
            return True
        return False

    world.api.fault = fault
    assert driver.round().starts == []
    assert driver.round().starts == ["Job/default/j0"]


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"wattloop.dev/job": "wattloop:model=" + "x" * 50_000}}},
        {"metadata": {"annotations": {"wattloop.dev/job": "\x1b[2Jwattloop:gpus=-1,batch=1e99"}}},
        {"metadata": {"annotations": {"wattloop.dev/released-at": "never"}}},
        {"metadata": {"annotations": {"wattloop.dev/released-at": "9999-99-99T99:99:99Z"}}},
        {"spec": {"activeDeadlineSeconds": 10**18}},
        {"spec": {"parallelism": 10**9}},
        {"metadata": {"creationTimestamp": "2026-13-45T00:00:00Z"}},
        {"spec": {"template": {"spec": {"nodeSelector": {"nvidia.com/gpu.product": "../x.yaml"}}}}},
    ],
)
def test_hostile_jobs_stop_no_other(world: World, change: dict[str, Any]) -> None:
    world.api.add(job("good"))
    world.api.add(job("evil"))
    from tests.support.kubernetes_api import merged

    key = "batch/jobs/default/evil"
    world.api.state.objects[key] = merged(world.api.state.objects[key], change)
    driver = world.driver()
    driver.begin()
    assert "Job/default/good" in driver.round().starts


# -- Kueue ---------------------------------------------------------------------------------


def workload(name: str, gpus: int = 1, state: str = "Pending") -> dict[str, Any]:
    """A Workload of Kueue with reserved quota and two checks."""
    template = job(name, gpus=gpus)["spec"]["template"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "u", "controller": True}
    now = "2026-11-18T00:00:00Z"
    return {
        "apiVersion": f"{KUEUE}/v1beta1",
        "kind": "Workload",
        "metadata": {"name": f"job-{name}", "namespace": "ml", "ownerReferences": [owner]},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admissionChecks": [
                {"name": "power", "state": state, "lastTransitionTime": now, "message": ""},
                {"name": "other", "state": "Ready", "lastTransitionTime": now, "message": "ok"},
            ],
        },
    }


def test_workloads_of_kueue_wait_for_their_check(world: World) -> None:
    check = {"apiVersion": f"{KUEUE}/v1beta1", "kind": "AdmissionCheck"}
    world.api.add(
        {
            **check,
            "metadata": {"name": "power"},
            "spec": {"controllerName": "wattloop.dev/power-gate"},
        }
    )
    world.api.add({**check, "metadata": {"name": "other"}, "spec": {"controllerName": "x"}})
    for number in range(3):
        world.api.add(workload(f"w{number}", gpus=4))
    driver = world.driver(kueue=True)
    driver.begin()
    active = world.api.get("admissionchecks", "", "power", KUEUE)["status"]["conditions"]
    assert (active[0]["type"], active[0]["status"]) == ("Active", "True")

    def states(name: str) -> dict[str, str]:
        item = world.api.get("workloads", "ml", f"job-{name}", KUEUE)
        return {c["name"]: c["state"] for c in item["status"]["admissionChecks"]}

    assert len(driver.round().starts) == 2
    assert [states(f"w{n}")["power"] for n in range(3)] == ["Ready", "Ready", "Pending"]
    assert states("w0")["other"] == "Ready"
    assert driver.round().starts == []  # their GPUs are assigned, though no pod runs yet
    driver.restore()
    assert states("w2")["power"] == "Ready"


def test_the_command_asks_the_provider_that_is_set(
    world: World,
    grids: Any,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Promise: `k8s run` says the start by the provider's forecast, and with --drive waits."""
    named = f"electricity-maps:DE@{grids.base}"
    monkeypatch.setenv("WATTLOOP_CARBON_PROVIDER", named)
    grids.value = lambda at_s: 100.0 if at_s > grids.now_s + 3 * HOUR_S else 300.0
    world.api.add(job("j0", annotations={"wattloop.dev/start-by": "12 h"}))
    words = ["k8s", "run", "--policy", "fifo", "--oracle", "table", "--gpus-only", "--once",
             "--api", world.api.url, "--lease-namespace", "wattloop"]  # fmt: skip
    assert main([*words, "--json", str(tmp_path / "seen.json")]) == 0
    seen = json.loads((tmp_path / "seen.json").read_text())
    found = seen["green"]["Job/default/j0"]
    assert found["g_co2e_per_kwh"] == 100.0
    assert found["now_g_co2e_per_kwh"] == 300.0
    assert found["start"] <= found["latest"]
    assert seen["commands"] == []
    driver = world.driver(forecast=lambda: read_forecast(provider_from(named)))
    driver.begin()
    driver.round()
    assert world.suspended() == ["j0"]


HOUR_S = 3_600.0


def grid(now_s: float, hours: list[float]) -> Forecast:
    """Return a forecast with an intensity for each hour from now on."""
    points = [IntensityPoint(now_s + k * HOUR_S, g) for k, g in enumerate([*hours, hours[-1]])]
    return lambda: GridSeries(tuple(points), GridBasis.AVERAGE, "test")


def rounds_at(driver: KubernetesDriver, at_s: float) -> None:
    driver._now_s = lambda: at_s  # type: ignore[method-assign]  # the clock of the driver
    driver.round()


def test_a_job_that_may_wait_starts_when_it_is_green_and_never_after_its_limit(
    world: World,
) -> None:
    """Promise: held until the greenest start within its limit; other Jobs do not wait."""
    now_s = time.time()
    hours = [300.0, 290.0, 150.0, 50.0, 100.0, 20.0, *[300.0] * 20]
    for name, start_by in (("may", "3.2 h"), ("soon", "30 min"), ("at-once", None)):
        notes = None if start_by is None else {"wattloop.dev/start-by": start_by}
        world.api.add(job(name, annotations=notes))
    driver = world.driver(forecast=grid(now_s - 60, hours))
    driver.begin()
    rounds_at(driver, now_s)
    assert world.suspended() == ["may"]  # of 30 minutes, none is 2% greener for an hour
    (said,) = [text for text in world.said if "Job/default/may" in text]
    found = driver.green.advised["Job/default/may"]
    assert found.advice.start_wall_s == pytest.approx(now_s - 60 + 3 * HOUR_S, abs=1.0)
    assert found.latest_s == pytest.approx(now_s + 3.2 * HOUR_S, abs=5.0)
    assert "less carbon" in said
    rounds_at(driver, found.advice.start_wall_s - 120)
    assert world.suspended() == ["may"]
    rounds_at(driver, found.advice.start_wall_s + 1)
    assert world.suspended() == []


def test_a_greener_hour_after_the_limit_does_not_hold_a_job(world: World) -> None:
    now_s = time.time()
    by = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s + 2 * HOUR_S))
    world.api.add(job("j0", annotations={"wattloop.dev/start-by": by}))
    driver = world.driver(forecast=grid(now_s - 60, [300.0 - 10 * k for k in range(20)]))
    driver.begin()
    rounds_at(driver, now_s)
    assert world.suspended() == ["j0"]
    assert driver.green.advised["Job/default/j0"].advice.start_wall_s <= now_s + 2 * HOUR_S
    rounds_at(driver, now_s + 2 * HOUR_S + 1)  # still greener later, but that is too late
    assert world.suspended() == []


def test_the_delay_of_a_policy_holds_for_all_jobs(world: World) -> None:
    now_s = time.time()
    world.api.add(job("j0"))
    hours = [300.0, 300.0, 50.0, 50.0, *[300.0] * 20]
    driver = world.driver("selene", forecast=grid(now_s - 60, hours))
    driver.begin()
    rounds_at(driver, now_s)
    assert world.suspended() == ["j0"]
    rounds_at(driver, now_s + 2 * HOUR_S)
    assert world.suspended() == []
    world.api.add(job("j1"))
    assert not world.driver("selene").green.set_aside(driver, now_s)  # no provider, no delay


def test_a_driver_that_stops_releases_jobs_that_wait_for_green_power(world: World) -> None:
    now_s = time.time()
    world.api.add(job("j0", annotations={"wattloop.dev/start-by": "6 h"}))
    driver = world.driver(forecast=grid(now_s - 60, [300.0, 50.0, *[300.0] * 20]))
    run_loop(driver, threading.Event(), rounds=1)
    assert any("start at" in text for text in world.said)
    assert world.suspended() == []


@pytest.mark.parametrize("start_by", ["tomorrow", "-1 h", "", "9" * 400, "6 h"])
def test_without_advice_a_job_starts_at_once(world: World, start_by: str) -> None:
    """An annotation that makes no sense, or a provider that is away, holds nothing and is said."""
    world.api.add(job("j0", annotations={"wattloop.dev/start-by": start_by}))

    def away() -> GridSeries:
        raise GridUnavailable("electricity-maps does not answer")

    driver = world.driver(forecast=away)
    driver.begin()
    driver.round()
    driver.round()
    assert world.suspended() == []
    assert sum("starts without advice" in text for text in world.said) == 1


def test_a_latest_start_is_a_time_or_a_time_after_submission() -> None:
    assert latest_start("6 h", 100.0) == 100.0 + 6 * HOUR_S
    assert latest_start("1970-01-01T02:00:00Z", 100.0) == 2 * HOUR_S
    assert latest_start("1970-01-01T02:00:00+01:00", 100.0) == HOUR_S
    with pytest.raises(ConfigError, match="give a time such as"):
        latest_start(7, 0.0)


def test_an_observer_says_when_a_job_should_start(world: World) -> None:
    """Promise: the advice is in what the observer says and holds, and nothing is changed."""
    now_s = time.time()
    world.api.add(job("j0", annotations={"wattloop.dev/start-by": "6 h"}))
    queue, site, chosen, log = world.parts("zeus", None, False)
    observer = KubernetesObserver(
        queue, site, chosen, log=log, settings=DriverSettings(),
        forecast=grid(now_s - 60, [300.0, 300.0, 50.0, *[300.0] * 20]),
    )  # fmt: skip
    run_loop(observer, threading.Event(), rounds=2)
    assert observer.commands == []
    assert sum("start at" in text for text in world.said) == 1
    assert not any(r.startswith(("PATCH", "POST", "PUT", "DELETE")) for r in world.api.requests)


def test_the_command_observes_by_default_and_drives_when_asked(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.api.add(job("j0"))
    words = ["k8s", "run", "--policy", "fifo", "--oracle", "table", "--gpus-only", "--once",
             "--api", world.api.url, "--lease-namespace", "wattloop"]  # fmt: skip
    assert main([*words, "--json", str(tmp_path / "seen.json")]) == 0
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert world.suspended() == ["j0"]
    assert seen["commands"][0][:5] == ["kubectl", "-n", "default", "patch", "job"]
    assert seen["last"]["starts"] == ["Job/default/j0"]
    assert main([*words, "--drive"]) == 0
    assert world.suspended() == []
    assert "j0" in capsys.readouterr().out
