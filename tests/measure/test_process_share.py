"""Promises of `--share process`: a run states its own part of the devices, as a model."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.measure.conftest import Machine
from tests.support.nvml_stub import Call, NoCompiler, StubNvml
from wattloop.accounting.energy_slope import Line
from wattloop.accounting.idle import IdleLine, IdleRecord, idle_path, save_idle
from wattloop.core.clock import VirtualClock
from wattloop.core.errors import ConfigError
from wattloop.core.records import Gap, Provenance
from wattloop.core.results import DomainEnergy
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure import process_share
from wattloop.measure.process_share import ProcessShares, ShareCurves
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.session import Session
from wattloop.meters import nvidia
from wattloop.meters.base import Context, DeviceProcess
from wattloop.store.database import open_store
from wattloop.store.job_queries import job_totals
from wattloop.store.journal import read_journal
from wattloop.store.journal_import import import_orphaned
from wattloop.store.runs import list_runs
from wattloop.virtual.node import shared_gpus
from wattloop.virtual.timeline import WorkOwner, this_process

WAIT = "open('busy.go').read()\n"
BURN = "import time\nend_s = time.process_time() + 2.0\nwhile time.process_time() < end_s: pass\n"


def test_the_part_follows_the_work_of_each_interval() -> None:
    """Promise: shares are ratios of work; outside the first and last poll the nearest one holds."""
    curves = ShareCurves()
    assert curves.share("cpu", 0.0, 1.0) is None
    for time_s, own, everything in ((0.0, 5.0, 100.0), (1.0, 6.0, 102.0), (2.0, 6.0, 106.0)):
        curves.add("cpu", time_s, own, everything)
    assert curves.share("cpu", 0.0, 1.0) == pytest.approx(0.5)
    assert curves.share("cpu", 1.0, 2.0) == 0.0
    assert curves.share("cpu", 0.0, 2.0) == pytest.approx(1 / 6)
    assert curves.share("cpu", -3.0, -2.0) == pytest.approx(0.5)
    assert curves.share("cpu", 5.0, 6.0) == 0.0
    curves.add("cpu", 3.0, 4.0, 105.0)  # sums that fell: a process left without being waited for
    assert curves.share("cpu", 2.0, 3.0) == 0.0
    again = ShareCurves.from_events([{"type": "note"}, curves.to_event(1.0), curves.to_event(9.0)])
    assert again.last("cpu") == curves.last("cpu")


def test_work_after_a_process_that_was_not_waited_for_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: an unwaited helper that takes its CPU time with it does not hide the others'
    work.
    """
    (tmp_path / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    shares = ProcessShares(Host(procfs=tmp_path), [])
    looks = ((1.0, 10.0), (2.0, 12.0), (3.0, 2.0), (4.0, 3.0), (5.0, 4.0))
    for time_s, cpu_time_s in looks:
        times_s = {process_share._Process(1, b"1"): cpu_time_s}
        monkeypatch.setattr(process_share, "_read_tree", lambda root, found=times_s: found)
        ticks = round(2 * time_s * os.sysconf("SC_CLK_TCK"))
        (tmp_path / "stat").write_text(f"cpu {ticks} 0 0 0 0 0 0 0 0 0\n")
        shares.look(time_s)
    assert shares.share("cpu", 1.0, 2.0) == pytest.approx(1.0)
    assert shares.share("cpu", 2.0, 3.0) == 0.0
    assert shares.share("cpu", 3.0, 5.0) == pytest.approx(0.5)


def test_a_kernel_that_does_not_list_children_divides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: where the run's processes are unknown its part is missing, and not too small."""
    monkeypatch.setattr(process_share, "_children_file", lambda pid, task: tmp_path / "absent")
    shares = ProcessShares(Host(), ["gpu:0"])
    shares.look(1.0)
    shares.look(2.0)
    assert shares.share("cpu", 1.0, 2.0) is None
    assert set(shares.reasons) == {"cpu", "gpu:0"}
    assert "CONFIG_PROC_CHILDREN" in shares.reasons["cpu"]


def test_long_runs_keep_a_bounded_number_of_looks() -> None:
    curves = ShareCurves()
    for look in range(40_000):
        curves.add("cpu", look / 2, look / 4, look / 2)
    assert len(curves.edges("cpu", 0.0, 20_000.0)) <= 250
    assert curves.share("cpu", 0.0, 20_000.0) == pytest.approx(0.5)


def test_two_runs_state_their_parts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: the run that works gets the energy, the one that sleeps gets almost nothing;
    modelled, marked as shared, and both in the total, which is no more than the machine used.
    """
    monkeypatch.delenv("WATTLOOP_PROCFS_ROOT")
    words = [sys.executable, "-m", "wattloop", "run", "-q", "--share", "process", "--json"]
    for name in ("busy", "idle"):
        os.mkfifo(f"{name}.go")  # neither may end before the other has begun
    both = [
        subprocess.Popen([*words, "busy.json", "--", sys.executable, "-c", WAIT + BURN]),
        subprocess.Popen([*words, "idle.json", "--", "sh", "-c", "read line < idle.go; sleep 3"]),
    ]
    with Path("busy.go").open("w") as busy_go, Path("idle.go").open("w") as idle_go:
        for gate in (busy_go, idle_go):  # both wait for it
            gate.write("\n")
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    busy, idle = (json.loads(Path(f"{name}.json").read_text()) for name in ("busy", "idle"))
    for found in (busy, idle):
        assert {d["provenance"] for d in found["domains"]} == {"modelled"}
        assert all("share by CPU time" in d["source"] for d in found["domains"])
        assert found["shared"]["divided"]
        assert found["shared"]["left_out_j"] == 0.0
        assert not found["labels"]  # the limits are those of whole devices
        # board, disks and network card are divided as the CPU is
        assert found["accounting"]["node"]["energy_j"] < 3 * found["energy_j"]
    assert 0 < idle["energy_j"] < busy["energy_j"] / 2
    with open_store(str(machine.store)) as store:
        list(import_orphaned(store, finalize_orphaned_run))
        total_j = job_totals(store).energy_j
        records = list_runs(store)
    assert total_j == pytest.approx(busy["energy_j"] + idle["energy_j"])
    begin_s = min(record.started_s for record in records)
    end_s = max(record.ended_s or 0.0 for record in records)
    assert total_j is not None
    assert total_j < machine.power_w * (end_s - begin_s)


def test_a_run_that_counts_all_contains_the_parts_of_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: next to a run of the whole machine, a part of it is not added again."""
    monkeypatch.delenv("WATTLOOP_PROCFS_ROOT")
    words = [sys.executable, "-m", "wattloop", "run", "-q"]
    whole = subprocess.Popen([*words, "--name", "whole", "--", "sleep", "100"])
    part = [*words, "--share", "process", "--name", "part", "--", sys.executable, "-c", BURN]
    limit_s = time.monotonic() + 120
    while not list(Path(os.environ["WATTLOOP_NODE_RUNS"]).glob("[0-9]*.json")):
        assert time.monotonic() < limit_s
        time.sleep(0.02)
    subprocess.run(part, check=True, timeout=600)
    whole.terminate()
    assert whole.wait(timeout=300) == 128 + signal.SIGTERM
    with open_store(str(machine.store)) as store:
        list(import_orphaned(store, finalize_orphaned_run))
        found = {record.name: record for record in list_runs(store)}
    assert found["whole"].left_out == 0.0
    assert found["part"].left_out == 1.0


def test_a_killed_run_keeps_its_part(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: a recovered journal is divided as well."""
    monkeypatch.delenv("WATTLOOP_PROCFS_ROOT")
    program = (
        "import time, wattloop\n"
        "with wattloop.measure('sleeps', share='process'):\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(7.0)
        process.send_signal(signal.SIGKILL)
    with open_store(str(machine.store)) as store:
        list(import_orphaned(store, finalize_orphaned_run))
        (record,) = list_runs(store)
    assert record.status.value == "died"
    assert record.result is not None
    assert record.result.provenance == "modelled"
    assert record.energy_j is not None and record.duration_s is not None
    assert record.energy_j < 0.8 * machine.power_w * record.duration_s


@pytest.fixture
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubNvml]:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        with StubNvml(tmp_path_factory.mktemp("nvml"), gpus=2) as stub:
            yield stub
    except NoCompiler as reason:
        pytest.skip(str(reason))


def _run_on(card: StubNvml, share: str = "process") -> tuple[dict[str, DomainEnergy], float]:
    """Measure this process's part of the stub cards, at 500 W and idle; return it and the
    duration.
    """
    card.constant(0, 500.0)
    settings = Settings(meters=("nvidia",), sampler="thread", share=share)
    session = Session.open(context=Context(Host(), settings), keep=False)
    time.sleep(1.2)
    result = session.close().result
    return {d.name: d for d in result.domains}, result.duration_s


def test_a_gpu_is_divided_by_the_utilisation_of_processes(card: StubNvml) -> None:
    """Promise: SM utilisation divides a card, and an idle card is divided by contexts on it."""
    first, second = card.gpu(0), card.gpu(1)
    first.process_pids[0], first.process_sm[0] = os.getpid(), 60
    first.process_pids[1], first.process_sm[1] = 1, 20
    second.process_pids[0] = os.getpid()
    second.process_pids[1] = 1
    found, duration_s = _run_on(card)
    idle_w = 0.11 * 700  # expected, since the card was never seen idle
    part = (idle_w / 2 + (500 - idle_w) * 0.75) / 500
    for name, expected in (("gpu:0", part), ("gpu:1", 0.5)):
        whole_j = (500.0 if name == "gpu:0" else 75.0) * duration_s
        assert found[name].energy_j == pytest.approx(expected * whole_j, rel=0.3)
    assert {d.provenance.value for d in found.values()} == {"modelled"}
    # a constant load does not show the cost of each process
    assert found["gpu:0"].uncertainty_j > 0.1 * (found["gpu:0"].energy_j or 0.0)
    assert "share by SM utilisation" in found["gpu:0"].source


def test_idle_power_of_an_unknown_card_is_that_of_wattloop_idle(
    card: StubNvml, tmp_path: Path
) -> None:
    """Promise: the figure that `wattloop idle` has stored for this card is its idle power."""
    found_w = []
    for idle_w in (None, 200.0):
        first = card.gpu(0)
        first.process_pids[0], first.process_sm[0] = os.getpid(), 60
        first.process_pids[1], first.process_sm[1] = 1, 20
        store = str(tmp_path / f"{idle_w}" / "runs.db")
        if idle_w is not None:
            line = Line(0.0, idle_w, 1.0, 0.0, 8, 4.0, 8.0)
            lines = {"gpu:0": IdleLine("gpu:0", line, "nvml", Provenance.MEASURED)}
            record = IdleRecord(Host().machine_id, "here", "", time.time(), lines)
            save_idle(idle_path(store, Host().machine_id), record)
        card.constant(0, 500.0)
        settings = Settings(meters=("nvidia",), sampler="thread", share="process", store=store)
        session = Session.open(context=Context(Host(), settings), keep=False)
        time.sleep(1.2)
        session.close()
        assert session.shares is not None
        fit = session.shares._fits["gpu:0"][1]
        assert fit is not None
        found_w.append(fit.idle_w)
    assert found_w == pytest.approx([0.11 * 700, 200.0], abs=2.0)


def test_a_card_without_utilisation_is_divided_by_memory_and_time(card: StubNvml) -> None:
    """Promise: a driver that samples no processes still gives a share, and names the method."""
    for number in (0, 1):
        state = card.gpu(number)
        state.unsupported_calls = int(state.unsupported_calls) | Call.UTILISATION
        state.process_pids[0], state.process_pids[1] = os.getpid(), 1
    found, duration_s = _run_on(card)
    energy = found["gpu:0"]
    assert energy.energy_j == pytest.approx(0.5 * 500 * duration_s, rel=0.3)  # both hold as much
    assert "share by memory and time" in energy.source
    assert energy.uncertainty_j >= 0.4 * energy.energy_j


@pytest.mark.parametrize("share", ["process", "device"])
@pytest.mark.parametrize("visible", [False, True])
def test_a_card_split_by_mig_is_divided_by_slices(
    card: StubNvml, visible: bool, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: an instance has its slices of the card, known by its process or, in a container, by
    CUDA_VISIBLE_DEVICES; other slices, used or free, are not this run's.
    """
    state = card.gpu(0)
    state.mig_mode = 1
    state.mig_slices[0], state.mig_slices[1], state.mig_slices[3] = 3, 2, 1
    state.mig_pids[0] = 1  # another program
    state.mig_sm[0] = -1  # neither GPM nor DCGM
    if visible:
        uuid = f"MIG-1{state.uuid.decode()[5:]}"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    else:
        state.mig_pids[1] = os.getpid()
    found, duration_s = _run_on(card, share)
    energy = found["gpu:0"]
    assert ("share by" in found["gpu:1"].source) == (share == "process")
    assert energy.energy_j == pytest.approx(2 / 7 * 500 * duration_s, rel=0.3)
    assert "share by MIG slices and time" in energy.source
    assert energy.provenance.value == "modelled"
    assert energy.uncertainty_j >= 0.6 * energy.energy_j


def test_parts_of_mig_instances_add_up_to_the_card(card: StubNvml) -> None:
    state = card.gpu(0)
    state.mig_mode = 1
    state.mig_slices[0], state.mig_slices[1], state.mig_slices[3] = 3, 2, 1
    state.mig_pids[0] = state.mig_pids[1] = 7  # one program on two instances
    state.mig_sm[0], state.mig_sm[1], state.mig_sm[3] = 50, 20, 100
    reader = _process_reader()
    found = reader()
    assert {each.pid: each.slices for each in found} == {7: 5.0, -4: 1.0, 0: 1.0}
    uuids = {each.pid: each.instance for each in found}
    assert uuids[-4] == f"MIG-3{state.uuid.decode()[5:]}"
    assert uuids[7].startswith("MIG-")
    assert uuids[0] == ""
    assert {each.sm for each in found} == {None}  # GPM needs two samples
    assert {each.pid: each.sm for each in reader()} == {
        7: pytest.approx((0.5 * 3 + 0.2 * 2) / 7),
        -4: pytest.approx(1 / 7),
        0: 0.0,
    }


def _process_reader() -> Callable[[], Sequence[DeviceProcess]]:
    settings = Settings(meters=("nvidia",))
    meters = nvidia.detect(Context(Host(), settings))
    (meter,) = [meter for meter in meters if meter.name == "nvml-power"]

    def read() -> Sequence[DeviceProcess]:
        found = meter.read_processes()["gpu:0"]
        assert not isinstance(found, Gap)
        return found

    return read


def test_an_instance_pays_for_its_activity(card: StubNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: with GPM, dynamic power follows the SM activity of instances, idle power slices."""
    state = card.gpu(0)
    state.mig_mode = 1
    state.mig_slices[0], state.mig_slices[1] = 4, 3
    state.mig_sm[0], state.mig_sm[1] = 10, 90
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-1{state.uuid.decode()[5:]}")
    found, duration_s = _run_on(card, "device")
    energy = found["gpu:0"]
    idle_w = 0.11 * 700
    expected_w = idle_w * 3 / 7 + (500 - idle_w) * 2.7 / (2.7 + 0.4)
    assert energy.energy_j == pytest.approx(expected_w * duration_s, rel=0.25)
    assert "share by SM activity of MIG instances" in energy.source
    assert 0 < energy.uncertainty_j < energy.energy_j


DCGM_ANSWER = """# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="%(uuid)s",pci_bus_id="00000000:07:00.0",device="nvidia0",\
modelName="NVIDIA A100-SXM4-80GB",Hostname="node7"} 41
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="%(uuid)s",device="nvidia0",\
GPU_I_PROFILE="3g.40gb",GPU_I_ID="0",Hostname="node7"} 0.75
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="%(uuid)s",GPU_I_PROFILE="2g.20gb",GPU_I_ID="1"} 0.5
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="%(uuid)s",GPU_I_PROFILE="3g.40gb",GPU_I_ID="0"} 0.25
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="%(uuid)s",GPU_I_PROFILE="1g.10gb",GPU_I_ID="3"} 7e9
DCGM_FI_PROF_SM_ACTIVE{gpu="0",GPU_I_ID="x"} nonsense
DCGM_FI_PROF_SM_ACTIVE{
"""


def test_a_crashed_run_on_an_instance_keeps_its_part(
    card: StubNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: without an end, a journal of a MIG instance gives the instance's part, not the
    card.
    """
    state = card.gpu(0)
    state.mig_mode, state.mig_sm[0] = 1, -1
    state.mig_slices[0], state.mig_slices[1] = 5, 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-1{state.uuid.decode()[5:]}")
    monkeypatch.setattr(process_share, "EVENT_EVERY_S", 0.0)
    card.constant(0, 500.0)
    settings = Settings(meters=("nvidia",), sampler="thread", store=str(tmp_path / "runs.db"))
    session = Session.open(context=Context(Host(), settings))
    time.sleep(1.2)
    session._flush()
    (path,) = (tmp_path / "runs.db.journals").glob("*.journal")
    journal = read_journal(path)
    assert journal is not None
    end = finalize_orphaned_run(journal)
    session.close()
    (energy,) = (d for d in end["result"]["domains"] if d["name"] == "gpu:0")
    duration_s = end["time_s"] - end["result"]["begin_s"]
    assert energy["energy_j"] == pytest.approx(2 / 7 * 500 * duration_s, rel=0.25)
    assert energy["provenance"] == "modelled"


def test_activity_from_dcgm(card: StubNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: without GPM an exporter's activity is used: SM activity, else that of the engine.
    Values out of range and lines cut off are ignored.
    """
    state = card.gpu(0)
    state.mig_mode, state.mig_sm[0] = 1, -1
    state.mig_slices[0], state.mig_slices[1] = 3, 2
    answer = DCGM_ANSWER % {"uuid": state.uuid.decode()}
    assert set(nvidia.parse_dcgm(answer).values()) == {0.25, 0.5}
    monkeypatch.setenv(nvidia.DCGM_VARIABLE, "http://127.0.0.1:9/metrics")
    monkeypatch.setattr(nvidia.DcgmExporter, "_fetch", lambda self: answer)
    found = {each.pid: each.sm for each in _process_reader()()}
    assert found == {-1: pytest.approx(0.25 * 3 / 7), -2: pytest.approx(0.5 * 2 / 7), 0: 0.0}
    monkeypatch.undo()
    assert nvidia.DcgmExporter("http://127.0.0.1:9/metrics").activity("GPU-1", 0) is None


def test_an_exporter_that_hangs_is_left_alone() -> None:
    """Promise: it costs a second, then nothing for half a minute; the sampler continues."""
    accepted: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            accepted.append(connection)
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b"#")
                    time.sleep(0.05)

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        exporter = nvidia.DcgmExporter(f"http://127.0.0.1:{server.getsockname()[1]}/metrics")
        assert exporter.activity("GPU-1", 0) is None
        began_s = time.monotonic()
        for _ in range(100):
            assert exporter.activity("GPU-1", 0) is None
        assert len(accepted) == 1
        assert exporter._read_s > began_s + 10


def test_numbers_of_ended_processes_are_ignored(card: StubNvml) -> None:
    """Promise: a driver that lists an ended process with a wild number changes no energy."""
    first = card.gpu(0)
    first.process_pids[0], first.process_sm[0] = os.getpid(), 50
    first.process_pids[1], first.process_sm[1] = 999_999, 3_000_000_000
    found, duration_s = _run_on(card)
    assert found["gpu:0"].energy_j == pytest.approx((500 - 38) * duration_s, rel=0.3)


def test_two_programs_on_a_virtual_gpu_get_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the part of this process is the virtual card's own figure for it, within the
    interval, and a run of the whole device states all of it.
    """
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    clock = VirtualClock(1_000.0, 1.7e9)
    (gpu,) = shared_gpus(1, clock)
    other, begin_s = WorkOwner(1.0, 0.0), clock.now_s()
    runs = []
    for share in ("process", "device"):
        settings = Settings(meters=("virtual",), virtual_gpus=1, sampler="thread", share=share)
        runs.append(Session.open(context=Context(Host(), settings, clock), keep=False))
    for step in range(120):
        own_load, other_load = 0.1 + 0.3 * (step // 20 % 2), 0.2 + 0.3 * (step // 30 % 2)
        gpu.load(own_load, memory=0.2, owner=this_process())
        gpu.load(other_load, compute=0.2, memory=1.0, owner=other)
        clock.advance(0.5)
        for run in runs:
            run.reader.first_readings()
            run._flush()
    true_j = gpu.process_use(begin_s, clock.now_s())[this_process()].energy_j
    whole_j = gpu.true_energy_j(begin_s, clock.now_s())
    own, device = (run.close().result.domains[0] for run in runs)
    assert own.energy_j == pytest.approx(true_j, rel=0.1)
    assert abs((own.energy_j or 0.0) - true_j) <= own.uncertainty_j
    assert device.energy_j == pytest.approx(whole_j, rel=0.02)
    assert own.provenance.value == "simulated"


def test_a_crashed_run_gets_the_part_that_it_would_have_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the sums in a journal, one event in 5 s, divide a card by cost as well."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    clock = VirtualClock(1_000.0, 1.7e9)
    (gpu,) = shared_gpus(1, clock)
    other, begin_s = WorkOwner(1.0, 0.0), clock.now_s()
    settings = Settings(meters=("virtual",), virtual_gpus=1, sampler="thread", share="process")
    session = Session.open(context=Context(Host(), settings, clock), keep=False)
    events: list[dict[str, object]] = []
    shares = session.shares
    assert shares is not None
    for step in range(240):
        gpu.load(0.1 + 0.2 * (step // 40 % 2), memory=0.9, owner=this_process())
        gpu.load(0.2 + 0.2 * (step // 60 % 2), compute=0.2, memory=1.0, owner=other)
        clock.advance(0.5)
        session.reader.first_readings()
        session.reader.refresh()
        shares.look(clock.now_s(), events.append)
    true_j = gpu.process_use(begin_s, clock.now_s())[this_process()].energy_j
    (channel,) = (c for c in session.channels if c.domain.name == "gpu:0")
    assert 10 <= len(events) <= 30
    curves = ShareCurves.from_events(json.loads(json.dumps(events)))
    found = curves._part("gpu:0", channel, begin_s, clock.now_s())
    session.close()
    assert found is not None
    part, _, how = found
    assert part.energy_j == pytest.approx(true_j, rel=0.1)
    assert how == "share by SM utilisation"
    by_use = curves.share("gpu:0", begin_s, clock.now_s())
    assert by_use is not None
    assert abs(by_use * found[1] - true_j) > 0.15 * true_j  # what utilisation alone would say


def test_a_run_whose_processors_cannot_be_divided_states_no_node_energy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: an unknown part of board and disks is missing with a reason, and not zero."""
    monkeypatch.setenv("WATTLOOP_VIRTUAL_STATE", str(tmp_path / "cards"))
    clock = VirtualClock(1_000.0, 1.7e9)
    (gpu,) = shared_gpus(1, clock)
    settings = Settings(meters=("virtual",), virtual_gpus=1, sampler="thread", share="process")
    session = Session.open(context=Context(Host(), settings, clock), keep=False)
    monkeypatch.setattr(session.shares, "cpu_part", lambda *window: None)
    for _ in range(20):
        gpu.load(0.5, owner=this_process())
        clock.advance(0.5)
        session.reader.first_readings()
        session._flush()
    run = session.close()
    assert run.energy_j is not None
    assert run.accounting is not None
    assert run.accounting["node"]["energy_j"] is None
    assert "unknown" in run.accounting["node"]["reason"]
    assert run.accounting["carbon_g"] is None


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="use one of device, process"):
        Settings().overridden({"share": "fair"}, "measure()")
