"""Trainings on a real Ray cluster of this machine, whose two GPUs are virtual."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.characterize.virtual_caps import SRC, machine
from tests.tune.engines.loading_bench import EPOCH_S, LoadingBench
from tests.tune.small import Halving, small_problem
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings, settings_from
from wattloop.store.database import open_store
from wattloop.store.trial_records import read_trials
from wattloop.tune.bench import Past
from wattloop.tune.engines.ray_bench import RayBench
from wattloop.tune.function_bench import FunctionBench
from wattloop.tune.progress import Status
from wattloop.tune.search_limits import Spent
from wattloop.tune.search_loop import Search
from wattloop.tune.search_record import SearchRecord, open_search
from wattloop.tune.segment import Segment, Until
from wattloop.tune.trial import Trial

# Ray reads its environment when it is imported, so it is only looked for here.
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'wattloop[ray]'"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A cluster that listens on the loopback interface and keeps its files to itself."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "ended").mkdir()
    variables = {
        **machine(folder, gpus=4),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_TOKEN": os.urandom(32).hex(),
        "LOADING_BENCH_ENDED": str(folder / "ended"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), str(SRC), str(ROOT)]))
        import ray

        ray.init(
            num_cpus=2,
            num_gpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=80 << 20,
        )
        yield settings_from(os.environ)
        ray.shutdown()


@pytest.fixture(scope="module")
def bench(cluster: Settings) -> Iterator[RayBench]:
    """Both GPUs, held for all tests: workers take a second to start."""
    bench = RayBench(LoadingBench, cluster, slots=2, gpus=1, cpus=0.5)
    yield bench
    bench.close()


def segment(candidate: str, epochs: float = 1, **parameters: object) -> Segment:
    return Segment(
        key=f"{candidate}/{epochs}",
        candidate=candidate,
        parameters={"load": 0.5, **parameters},
        until=Until(epochs=epochs),
    )


def test_nothing_listens_beyond_this_machine(bench: RayBench) -> None:
    """Whatever Ray opens for a search on one machine is on the loopback interface."""
    listening = [line.split()[1] for line in _tcp() if line.split()[3] == "0A"]
    ours = [address for address in listening if address not in BEFORE]
    assert ours, "Ray listens somewhere"
    assert {address.partition(":")[0] for address in ours} <= LOOPBACK


def test_two_candidates_at_once_on_two_gpus(bench: RayBench) -> None:
    """Each has a GPU of its own, is measured there alone, and costs what its load costs."""
    with ThreadPoolExecutor(2) as threads:
        light, heavy = threads.map(
            bench.run, [segment("light", 3, load=0.1), segment("heavy", 3, load=1.0)]
        )
    assert light.status is heavy.status is Status.PAUSED
    assert light.metrics["devices"] == heavy.metrics["devices"] == 1
    assert light.metrics["pid"] != heavy.metrics["pid"]
    assert heavy.energy_j > 2 * light.energy_j
    assert light.run_id is None, "runs of workers are not in the store of the search"


def test_a_paused_training_goes_on_where_it_was(bench: RayBench) -> None:
    """Its process is the same, also when another one was trained on its GPU meanwhile."""
    names = ("a", "b", "c")  # more than there are slots
    with ThreadPoolExecutor(2) as threads:
        first = dict(zip(names, threads.map(bench.run, map(segment, names)), strict=True))
    again = {name: bench.run(segment(name, 2)) for name in names}
    for name in names:
        assert again[name].metrics["pid"] == first[name].metrics["pid"]
        assert again[name].epochs == 2
        assert again[name].time_s < 2 * EPOCH_S, "one epoch more, not two"
    assert len({progress.metrics["pid"] for progress in first.values()}) == 3


def test_a_worker_that_dies_is_a_killed_training(bench: RayBench) -> None:
    """Its joules are known all the same, the other one goes on, and its slot is used again."""
    pid = int(bench.run(segment("doomed", 1)).metrics["pid"])
    threading.Timer(2 * EPOCH_S, os.kill, (pid, signal.SIGKILL)).start()
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


def test_idle_watts_of_held_gpus_are_charged(bench: RayBench) -> None:
    """Two GPUs are held while one of them trains: the other one's watts are in the account."""
    bench.run(segment("x", 1))
    done = bench.run(segment("x", 5))
    assert done.idle_s > 4 * EPOCH_S
    # an idle H200 of the model draws about 75 W
    assert 40 < done.idle_j / done.idle_s < 110
    assert Spent().after(done).energy_j == done.energy_j + done.idle_j


def test_errors_of_the_worker_come_out(bench: RayBench) -> None:
    """A mistake in a training is its result; what Wattloop refuses stops the search in words."""
    failed = bench.run(segment("wrong", fault="mistake"))
    assert failed.status is Status.FAILED
    assert failed.message == "ValueError: two axes, three labels"
    with pytest.raises(ConfigError, match="download it with 'make data'"):
        bench.run(segment("wrong", fault="refusal"))


def test_letting_go_ends_the_worker_in_order(bench: RayBench) -> None:
    """Its bench is closed, so that levers are put back, and the process is gone."""
    pid = int(bench.run(segment("done", 1)).metrics["pid"])
    bench.let_go("done")
    bench.let_go("never seen")
    assert (Path(os.environ["LOADING_BENCH_ENDED"]) / str(pid)).exists()
    deadline_s = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_what_an_earlier_process_trained_is_passed_on(bench: RayBench) -> None:
    """A bench on a worker is told how far its candidate was when the search was killed."""
    bench.recall({"known": Past(epochs=7.0)})
    assert bench.run(segment("known", 8)).epochs == 8


def test_a_search_on_two_gpus(cluster: Settings, tmp_path: Path) -> None:
    """Our strategy decides and our store remembers; Ray only trains, two at a time."""
    problem = small_problem()
    folder = tmp_path / "checkpoints"
    bench = RayBench(
        lambda settings: FunctionBench(small_training, problem, settings, folder=folder),
        cluster,
        slots=2,
        gpus=1,
        cpus=0.1,
    )
    with open_store(tmp_path / "runs.db") as store:
        record = SearchRecord(store, open_search(store, {}, "the same")[0])
        strategy = Halving(problem)
        stopped = Search(record, problem, strategy, bench).run()
        trials = read_trials(store, record.search_id)
    assert strategy.best().candidate == "w4"
    assert [trial.key for trial in trials] == ["w1/2", "w2/2", "w4/2", "w4/4", "w4/6"]
    assert all(trial.outcome["energy_j"] > 0 for trial in trials)
    assert stopped.spent.idle_j > 0


def test_slots_that_would_share_a_meter_are_refused(cluster: Settings) -> None:
    """Two trainings on one machine cannot be told apart by a meter of the whole machine."""
    with pytest.raises(ConfigError, match=r"2 slots on .* read once per machine in scope 'node'"):
        RayBench(LoadingBench, cluster, slots=2, cpus=0.1, scope="node")


def test_no_room_says_what_there_is(cluster: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that no machine can hold is refused with what was asked for and what there is."""
    monkeypatch.setattr("wattloop.tune.engines.ray_slots.RESERVE_S", 0.5)
    with pytest.raises(ConfigError, match=r"8 GPU found no room .* has .*4 GPU"):
        RayBench(LoadingBench, cluster, gpus=8)


def small_training(trial: Trial) -> None:
    """Better with every epoch, and with more width."""
    for epoch in trial.epochs(8):
        time.sleep(0.05)
        trial.report(accuracy=1 - 1 / (1 + (epoch + 1) * trial["width"]))


def _tcp() -> list[str]:
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    return [line for t in tables if t.exists() for line in t.read_text().splitlines()[1:]]


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
BEFORE = {line.split()[1] for line in _tcp()}
