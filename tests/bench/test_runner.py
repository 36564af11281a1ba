"""Promises of the runner: kernels are measured from outside on a machine with known power."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from tests.support.synthetic_kernels import made
from wattloop.accounting.energy_slope import Line
from wattloop.accounting.idle import IdleLine
from wattloop.bench.idle import IdleLines, idle_by_threads, idle_line
from wattloop.bench.plan import BenchRequest, make_plan
from wattloop.bench.record import BenchRecord, BenchRecorder, stored_record
from wattloop.bench.runner import KernelBench, scope_energies
from wattloop.core.errors import MeterUnavailable, StoreError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.session import Session
from wattloop.meters.base import Context
from wattloop.store.database import open_store

POWER_W, IDLE_W = 60.0, 20.0
LINE = Line(intercept=0.0, slope=IDLE_W, r2=1.0, rmse=0.0, points=5, mean_x=4.0, sum_squares_x=9.0)
LINES = {"cpu:0/package": IdleLine("cpu:0/package", LINE, "powercap", Provenance.MEASURED)}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """One package that draws 60 W."""
    tree = PowercapTree(tmp_path / "sys")
    package = tree.add_package(0, max_power_w=200, limit_w=150)
    with Driver({package: Constant(POWER_W)}, update_period_s=0.005) as driver:
        yield driver


@pytest.fixture
def session(driver: Driver, tmp_path: Path) -> Iterator[Session]:
    """Return a watching session of the package."""
    settings = Settings(meters=("rapl",), store=str(tmp_path / "runs.db"))
    context = Context(Host(sysfs=tmp_path / "sys"), settings)
    session = Session.open(context=context, in_process=False, keep=False)
    yield session
    session.close()


def bench(
    session: Session, sizes: str = "triad=1e5", seconds: float = 0.3, **facts: object
) -> KernelBench:
    choice = BenchRequest.of(
        kernels="triad", backends="numpy", sizes=sizes, threads="1", device="cpu", seconds=seconds
    )
    idle = IdleLines(LINES, "known")
    return KernelBench(make_plan(choice, Host()), session, idle, **facts)  # type: ignore[arg-type] - facts of any kind


def test_energy_is_that_of_the_measured_window(session: Session, driver: Driver) -> None:
    """Of 60 W, 20 W are idle; only the batches count, and rates come from the median."""
    (result,) = bench(session, seconds=1.5).run()
    assert result.ok, result.reason
    late_w = 2 * POWER_W * driver.longest_s / result.duration_s
    assert result.power_w() == pytest.approx(POWER_W, abs=0.1 * POWER_W + late_w)
    own_w = result.scopes["cpu"].application_j / result.duration_s
    assert own_w == pytest.approx(POWER_W - IDLE_W, abs=0.1 * POWER_W + late_w)
    assert result.scopes["cpu"].provenance == "measured"
    assert result.scopes["cpu"].domains == ("cpu:0/package",)
    assert result.gb_s == pytest.approx(1.2e6 / result.time_s / 1e9)  # type: ignore[operator] - is ok, has times
    assert result.method
    assert result.peak_memory_b


def test_a_kernel_that_takes_too_long_costs_only_itself(session: Session) -> None:
    """A time-out is a result, and a new worker measures the next size."""
    doing = bench(session, sizes="triad=1e8,triad=1e5", timeout_s=0.25)
    first, second = doing.run()
    assert (first.status, second.status) in {("timeout", "ok"), ("timeout", "timeout")}
    assert "took longer than 0.25 s" in first.reason
    assert first.time_s is None


def test_only_the_gpu_at_work_counts() -> None:
    """Seven idle GPUs are not the kernel's, and nested domains count once."""
    window = WindowResult(
        "w", 1, None, 0.0, 2.0,
        domains=(
            *(DomainEnergy(f"gpu:{n}", Scope.GPU, 100.0 + n, 1.0, Provenance.MEASURED, "nvml")
              for n in range(3)),
            DomainEnergy("cpu:0/package", Scope.CPU, 80.0, 2.0, Provenance.MEASURED, "powercap"),
            DomainEnergy("cpu:0/core", Scope.CPU, 50.0, 2.0, Provenance.MEASURED, "powercap"),
        ),
    )  # fmt: skip
    found = scope_energies(window, LINES, gpu=1)
    assert found["gpu"].energy_j == 101.0
    assert found["gpu"].application_j is None
    assert found["cpu"].energy_j == 80.0
    assert found["cpu"].application_j == pytest.approx(80.0 - 2 * IDLE_W)
    assert "dram" not in found


def test_idle_is_fitted_or_stored_or_left_in(session: Session) -> None:
    """Without a stored line `auto` fits one, `stored` asks for `wattloop idle`."""
    with pytest.raises(MeterUnavailable, match="run 'wattloop idle'"):
        idle_line(session, "stored", "cpu", lambda: None)
    assert idle_line(session, "none", "cpu", lambda: None).lines == {}


def test_idle_by_threads_finds_the_same_power(session: Session) -> None:
    """Table 3.14: sleeping threads draw what idling draws; one line through all windows."""
    rows, lines = idle_by_threads(session, (1, 2), lambda: None, windows_s=(0.2, 0.3, 0.4))
    assert {(r.threads, r.sleep_s) for r in rows} == {
        (t, s) for t in (1, 2) for s in (0.2, 0.3, 0.4)
    }
    # One short window may be off: the thread that moves the counter may be delayed.
    assert median(r.power_w for r in rows) == pytest.approx(POWER_W, rel=0.15)
    assert lines["cpu:0/package"].beta_w == pytest.approx(POWER_W, rel=0.5)


def test_results_are_stored_as_they_come(tmp_path: Path, session: Session) -> None:
    """Each result is in the store before the next begins; the newest is found as `last`."""
    plan = bench(session).plan
    with open_store(tmp_path / "kept.db") as store:
        keeper = BenchRecorder(store, plan, wall_s=1e9)
        keeper.add(made())
        assert [r.kernel for r in stored_record(store, "last").results] == ["gemm"]
        keeper.add(made("triad", status="failed", reason="lost"))
        keeper.end("finished", BenchRecord(results=[], warnings=["w"], idle={"note": "n"}))
        record = stored_record(store, "last")
        assert [(r.kernel, r.status) for r in record.results] == [
            ("gemm", "ok"), ("triad", "failed"),
        ]  # fmt: skip
        assert record.results[0] == made()
        assert (record.warnings, record.idle) == (["w"], {"note": "n"})
        with pytest.raises(StoreError, match="no bench"):
            stored_record(store, "bench-none")


def test_a_store_that_fails_costs_a_warning(tmp_path: Path, session: Session) -> None:
    """No result is lost."""
    store = open_store(tmp_path / "kept.db")
    store.read_only = True
    keeper = BenchRecorder(store, bench(session).plan, wall_s=1e9)
    keeper.add(made())
    keeper.end("finished")
    store.close()
    assert keeper.experiment_id is None
    assert len(keeper.warnings) == 1
    assert "results are not kept" in keeper.warnings[0]
