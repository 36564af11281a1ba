"""Trainings on a real Ray cluster of this machine, whose two GPUs are virtual."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.virtual_caps import SRC, machine
from tests.tune.executors.loading_executor import EPOCH_S, LoadingExecutor
from tests.tune.small import small_problem
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings, settings_from
from wattloop.tune.api import search
from wattloop.tune.executors.base import TrainedSoFar
from wattloop.tune.executors.function import FunctionExecutor
from wattloop.tune.executors.ray import LOOPBACK_VARIABLE, RayExecutor, connect_ray
from wattloop.tune.search_loop import BudgetSpent
from wattloop.tune.search_setup import parse_ray_slots
from wattloop.tune.segment import Segment, Status, Until
from wattloop.tune.space import Choice, Space
from wattloop.tune.trial import Trial
from wattloop.virtual.node import shared_gpus

# Ray reads its environment when it is imported, so the module only checks that it exists.
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'wattloop[ray]'"
)


TOKEN = os.urandom(32).hex()
"""One for all clusters of this process, which pytest may have several of: Ray reads it once."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A cluster that listens on the loopback interface and keeps its files to itself."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "ended").mkdir()
    variables = {
        **machine(folder, gpus=4),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": TOKEN,
        "LOADING_BENCH_ENDED": str(folder / "ended"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv(LOOPBACK_VARIABLE, "1")  # so that what the search sets is removed again
        patch.delenv(LOOPBACK_VARIABLE)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), str(SRC), str(ROOT)]))
        # As a program that imports Ray for itself, before a search sets the switch of Ray.
        import ray

        ray._private.ray_constants.ENABLE_RAY_CLUSTER = True
        EARLIER.clear()
        EARLIER.update(_sockets_of_the_cluster())
        _start_cluster(ray)
        patch.syspath_prepend(str(folder / "site"))
        yield settings_from(os.environ)
        ray.shutdown()


def _start_cluster(ray: Any) -> None:
    """Ray gives its own processes 30 s to start, which may be too short on a busy machine."""
    while True:
        try:
            connect_ray(None, num_cpus=2, num_gpus=4, object_store_memory=80 << 20)
            return
        except ConfigError as error:
            if "timed out" not in str(error):
                raise
            ray.shutdown()


@pytest.fixture(scope="module")
def bench(cluster: Settings) -> Iterator[RayExecutor]:
    """Both GPUs, held for all tests: workers take a second to start."""
    bench = RayExecutor(LoadingExecutor, cluster, slots=2, gpus=1, cpus=0)
    yield bench
    bench.close()


def segment(candidate: str, epochs: float = 1, **parameters: object) -> Segment:
    return Segment(
        key=f"{candidate}/{epochs}",
        candidate=candidate,
        parameters={"load": 0.5, **parameters},
        until=Until(epochs=epochs),
    )


def test_nothing_listens_beyond_this_machine(bench: RayExecutor, neighbour: int) -> None:
    """Whatever Ray opens for a search on one machine is on the loopback interface."""
    sockets = _sockets_of_the_cluster()
    lines = [line.split() for line in _tcp()]
    listening = [words[1] for words in lines if words[3] == "0A" and words[9] in sockets]
    assert listening, "Ray listens somewhere"
    assert {address.partition(":")[0] for address in listening} <= LOOPBACK
    everywhere = [words[1] for words in lines if words[3] == "0A"]
    assert f"00000000:{neighbour:04X}" in everywhere, "and another cluster is left alone"


@pytest.fixture
def neighbour(cluster: Settings) -> Iterator[int]:
    """A process of another cluster of this test, such as one that is about to end, and its
    address.
    """
    code = (
        "import socket, sys; listener = socket.create_server(('', 0));"
        "print(listener.getsockname()[1], flush=True); sys.stdin.read()"
    )
    other = {**os.environ, "LOADING_BENCH_ENDED": "/elsewhere"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=other,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def test_two_candidates_at_once_on_two_gpus(bench: RayExecutor) -> None:
    """Each has a GPU of its own, is measured there alone, and costs what its load costs."""
    with ThreadPoolExecutor(2) as threads:
        light, heavy = threads.map(
            bench.run, [segment("light", 3, load=0.1), segment("heavy", 3, load=1.0)]
        )
    assert light.status is heavy.status is Status.PAUSED
    assert light.metrics["devices"] == heavy.metrics["devices"] == 1
    assert light.metrics["pid"] != heavy.metrics["pid"]
    # by power: on a busy machine one may take longer than the other
    assert heavy.energy_j / heavy.time_s > 2 * light.energy_j / light.time_s
    assert light.run_id is None, "runs of workers are not in the store of the search"


def test_a_paused_training_goes_on_where_it_was(bench: RayExecutor) -> None:
    """Its process is the same, also when another one was trained on its GPU meanwhile."""
    names = ("a", "b", "c")  # more than there are slots
    with ThreadPoolExecutor(2) as threads:
        first = dict(zip(names, threads.map(bench.run, map(segment, names)), strict=True))
    again = {name: bench.run(segment(name, 2)) for name in names}
    for name in names:
        assert again[name].metrics["pid"] == first[name].metrics["pid"]
        assert again[name].epochs == 2
        assert again[name].metrics["trained"] == 1, "one epoch more, not two"
    assert len({progress.metrics["pid"] for progress in first.values()}) == 3


def test_a_worker_that_dies_is_a_killed_training(bench: RayExecutor) -> None:
    """Its joules are known, the other training continues, and its slot is used again."""
    pid = int(bench.run(segment("doomed", 1)).metrics["pid"])
    threading.Thread(target=_kill_in_training, args=(pid,), daemon=True).start()
    with ThreadPoolExecutor(2) as threads:
        dead, alive = threads.map(bench.run, [segment("doomed", 100), segment("other", 3)])
    assert dead.status is Status.KILLED
    assert "died" in dead.message
    assert dead.energy_j > 0
    assert dead.time_s > EPOCH_S
    assert dead.epochs == 1, "what was known before"
    assert alive.status is Status.PAUSED
    with ThreadPoolExecutor(2) as threads:
        other, anew = threads.map(bench.run, [segment("other", 4), segment("doomed", 2)])
    assert other.status is anew.status is Status.PAUSED


def _kill_in_training(pid: int) -> None:
    cards = shared_gpus(4)
    while all(load.owner.pid != pid for card in cards for load in card.now().loads):
        time.sleep(0.01)
    time.sleep(2 * EPOCH_S)
    os.kill(pid, signal.SIGKILL)


def test_idle_watts_of_held_gpus_are_charged(bench: RayExecutor) -> None:
    """Two GPUs are held while one of them trains: the other one's watts are in the account."""
    bench.run(segment("x", 1))
    done = bench.run(segment("x", 5))
    assert done.idle_s > 4 * EPOCH_S
    # an idle H200 of the model draws about 75 W
    assert 40 < done.idle_j / done.idle_s < 110
    assert BudgetSpent().after(done).energy_j == done.energy_j + done.idle_j


def test_errors_of_the_worker_come_out(bench: RayExecutor) -> None:
    """A mistake in a training is its result; what Wattloop refuses stops the search in words."""
    failed = bench.run(segment("wrong", fault="mistake"))
    assert failed.status is Status.FAILED
    assert failed.message == "ValueError: two axes, three labels"
    with pytest.raises(ConfigError, match="download it with 'make data'"):
        bench.run(segment("wrong", fault="refusal"))


def test_letting_go_ends_the_worker_in_order(bench: RayExecutor) -> None:
    """Its executor is closed, so levers are restored, and the process ends."""
    pid = int(bench.run(segment("done", 1)).metrics["pid"])
    bench.release("done")
    bench.release("never seen")
    assert (Path(os.environ["LOADING_BENCH_ENDED"]) / str(pid)).exists()
    deadline_s = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_what_an_earlier_process_trained_is_passed_on(bench: RayExecutor) -> None:
    """An executor on a worker learns the progress of its candidate at the kill."""
    bench.recall({"known": TrainedSoFar(epochs=7.0)})
    assert bench.run(segment("known", 8)).epochs == 8


def test_a_search_on_two_gpus(cluster: Settings, tmp_path: Path) -> None:
    """Our strategy decides and our store remembers; Ray only trains, two at a time."""
    settings = cluster._replace(store=str(tmp_path / "runs.db"))
    found = search(
        small_training,
        space={"width": {"values": [1, 2, 4]}},
        metric="accuracy",
        goal="maximize",
        target=0.9,
        strategy="grid",
        epochs=4,
        parallel="ray:2",
        settings=settings,
    )
    rows = found.table()
    assert [row["status"] for row in rows] == ["ended", "ended", "reached"]
    assert all(row["energy_j"] > 0 and row["provenance"] == "simulated" for row in rows)
    assert found.best.parameters == {"width": 4}
    assert found.summary.idle_j > 0


def test_candidates_of_one_slot_set_its_levers_in_turn(cluster: Settings, tmp_path: Path) -> None:
    """A paused training holds no lever: the next one on its GPU sets its own."""
    space = {
        "width": Choice(values=(1, 2)),
        "power_limit": Choice(values=(400, 500), lever="gpu/power_limit"),
    }
    problem = replace(small_problem(), space=Space(space))
    bench = RayExecutor(
        lambda settings: FunctionExecutor(small_training, problem, settings, folder=tmp_path),
        cluster,
        slots=1,
        gpus=1,
        cpus=0,
    )
    facts = bench._slots[0].facts
    (gpu,) = facts.devices
    card = shared_gpus(4)[int(gpu.partition(":")[2])]
    before_w = card.now().limit_w
    wanted = [("a", 400, 1), ("b", 500, 1), ("a", 400, 2)]
    try:
        for candidate, watts, epochs in wanted:
            asked = replace(
                segment(candidate, epochs), parameters={"width": 1}, levers={"power_limit": watts}
            )
            done = bench.run(asked)
            assert (done.status, done.message) == (Status.PAUSED, "")
            assert done.metrics["limit_w"] == watts
            assert card.now().limit_w == before_w
        assert any(Path(facts.scratch).iterdir())
    finally:
        bench.close()
    assert not Path(facts.scratch).exists(), "nothing is left on the worker"


@pytest.mark.parametrize(
    ("text", "slots"), [("ray", (None, 1)), ("ray:4", (4, 1)), ("ray:4x2", (4, 2)), ("0,1;2", None)]
)
def test_how_slots_are_asked_for(text: str, slots: object) -> None:
    """Promise: slots and GPUs per slot; what is not Ray's is left to others."""
    assert parse_ray_slots(text) == slots


def test_what_is_no_number_of_slots() -> None:
    """Promise: the message says what to write."""
    with pytest.raises(ConfigError, match="'ray:4x2' for four trainings on two GPUs each"):
        parse_ray_slots("ray:0x2")


def test_slots_that_would_share_a_meter_are_refused(cluster: Settings) -> None:
    """A meter of the whole machine cannot separate two trainings on one machine."""
    with pytest.raises(ConfigError, match=r"2 slots on .* read once per machine in scope 'node'"):
        RayExecutor(LoadingExecutor, cluster, slots=2, cpus=0.1, scope="node")


def test_no_room_says_what_there_is(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that no machine can hold is refused with what was asked for and what there is."""
    monkeypatch.setattr("wattloop.tune.executors.ray.RESERVE_S", 0.5)
    with pytest.raises(ConfigError, match=r"8 GPU found no room .* has .*4 GPU"):
        RayExecutor(LoadingExecutor, cluster, gpus=8)


def test_a_node_that_starts_too_slowly_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises a plain `Exception` for it."""
    import ray

    def too_slow(**options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setenv(LOOPBACK_VARIABLE, "1")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", too_slow)
    with pytest.raises(ConfigError, match="no cluster at this machine: The current node timed out"):
        connect_ray(None)


def small_training(trial: Trial) -> None:
    """Better with every epoch, and with more width."""
    for epoch in trial.epochs(8):
        time.sleep(0.05)
        card = shared_gpus(4)[int(os.environ["CUDA_VISIBLE_DEVICES"])]
        quality = 1 - 1 / (1 + (epoch + 1) * trial["width"])
        trial.report(accuracy=quality, limit_w=card.now().limit_w)


def _tcp() -> list[str]:
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    return [line for t in tables if t.exists() for line in t.read_text().splitlines()[1:]]


EARLIER: set[str] = set()
"""Sockets that other tests have left open in this process."""


def _sockets_of_the_cluster() -> set[str]:
    """Inodes of the sockets of all processes that know this cluster's folder, ours among them.

    The token would not tell it from an earlier cluster of this process.
    """
    mark = f"LOADING_BENCH_ENDED={os.environ['LOADING_BENCH_ENDED']}".encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.name != str(os.getpid()) and mark not in (process / "environ").read_bytes():
                continue
            for descriptor in (process / "fd").iterdir():
                target = str(descriptor.readlink())
                if target.startswith("socket:["):
                    found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found - EARLIER


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
