"""Collection: run the calibration suite within a time budget into a file, resumable at any case."""

import gc
import gzip
import json
import statistics
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.predict.calibrate.families.base import SECTIONS, CalibrationCase
from wattloop.predict.calibrate.gpu_sensor import GpuSensor, SensorSampler
from wattloop.predict.calibrate.host import host_seconds
from wattloop.predict.calibrate.machine import CalibrationDevice, machine_record
from wattloop.predict.calibrate.suite import SHARES, build, cases

# Timing of a kernel without waits for the host, and its sustained power, clock and rate.

SLEEP_CYCLES_S = 1.9e9
"""Approximate cycles per second of the GPU's sleep kernel."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Time of one kernel.

    Attributes:
        seconds: of one call, the median of `rounds`.
        spread: (largest - smallest) / median of the rounds.
        repeats: calls in each round.
        host_s: dispatch time of one call.
    """

    seconds: float
    spread: float
    repeats: int
    rounds: int
    host_s: float


class Timer:
    """Timer with the device's own events.

    The GPU sleeps while the host queues the calls: they then run back to back, however small they
    are, as in a training step that is bound by the GPU.
    """

    def __init__(
        self,
        bench: CalibrationDevice,
        *,
        round_s: float = 4e-3,
        rounds: int = 3,
        most_repeats: int = 100,
        longest_sleep_s: float = 0.05,
    ) -> None:
        self._bench = bench
        self._round_s = round_s
        self._rounds = rounds
        self._most = most_repeats
        self._longest_sleep_s = longest_sleep_s

    def time(self, calls: Sequence[Callable[[], Any]]) -> Timed:
        """Warm up, choose the number of repeats, and take the median of the rounds."""
        # Call every set once: results are kept until their turn comes again, and their memory must
        # not be allocated during the measurement.
        kept: list[Any] = [call() for call in calls]
        for number in range(2):
            kept[number % len(calls)] = calls[number % len(calls)]()
        self._bench.synchronize()
        begin = time.perf_counter()
        for number in range(2):
            kept[number % len(calls)] = calls[number % len(calls)]()
        host_s = (time.perf_counter() - begin) / 2
        self._bench.synchronize()
        rough_s = max((time.perf_counter() - begin) / 2, 1e-7)
        repeats = min(self._most, max(1, round(self._round_s / rough_s)))
        if rough_s < 5e-5:
            repeats = self._most  # the launch took longer than the kernel
        rounds = 2 if rough_s > 10 * self._round_s else self._rounds
        times = [self._round(calls, kept, repeats, host_s) for _ in range(rounds)]
        median = statistics.median(times)
        return Timed(median, (max(times) - min(times)) / median, repeats, rounds, host_s)

    def _round(
        self, calls: Sequence[Callable[[], Any]], kept: list[Any], repeats: int, host_s: float
    ) -> float:
        if not self._bench.on_gpu:
            begin = time.perf_counter()
            for number in range(repeats):
                kept[number % len(calls)] = calls[number % len(calls)]()
            return (time.perf_counter() - begin) / repeats
        cuda = self._bench.torch.cuda
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        sleep_s = min(1.3 * host_s * repeats + 2e-4, self._longest_sleep_s)
        cuda._sleep(int(sleep_s * SLEEP_CYCLES_S))
        first.record()
        for number in range(repeats):
            kept[number % len(calls)] = calls[number % len(calls)]()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / repeats


CHUNK_S = 5e-3
IN_FLIGHT = 4


def hold(
    bench: CalibrationDevice,
    calls: Sequence[Callable[[], Any]],
    sensor: GpuSensor,
    *,
    duty: float = 1.0,
    settle_s: float = 0.7,
    window_s: float = 1.5,
) -> Mapping[str, object]:
    """Run `calls` in turn for `settle_s` + `window_s`, and return the readings of the second part.

    Without calls the GPU is idle. With a `duty` below 1 the GPU waits in between.
    """
    seconds = Timer(bench, rounds=1).time(calls).seconds if calls else None
    with SensorSampler(sensor) as watch:
        begin_s = time.perf_counter()
        marks = _run(bench, calls, seconds, duty, begin_s + settle_s + window_s)
        end_s = time.perf_counter()
        drawn = watch.drawn(begin_s + settle_s, end_s)
    settled = [mark for mark in marks if mark[0] >= begin_s + settle_s] or marks
    period_s = None
    if len(settled) >= 2 and settled[-1][1] > settled[0][1]:
        period_s = (settled[-1][0] - settled[0][0]) / (settled[-1][1] - settled[0][1])
    busy = None if seconds is None or period_s is None else min(1.0, seconds / period_s)
    return {
        "seconds": period_s,
        "kernel_seconds": seconds,
        "busy_share": 0.0 if seconds is None else busy,
        "power_w": drawn.power_w,
        "polled_power_w": drawn.polled_w,
        "clock_mhz": drawn.clock_mhz,
        "temp_c": drawn.temp_c,
        "window_s": drawn.window_s,
    }


def _run(
    bench: CalibrationDevice,
    calls: Sequence[Callable[[], Any]],
    seconds: float | None,
    duty: float,
    until_s: float,
) -> list[tuple[float, int]]:
    """Return the time after so many calls; a few chunks are queued ahead so that the GPU never
    waits.
    """
    if seconds is None:
        time.sleep(max(0.0, until_s - time.perf_counter()))
        return []
    chunk = max(1, min(400, round(CHUNK_S / seconds)))
    flying: deque[Any] = deque()
    marks: list[tuple[float, int]] = []
    done = asked = 0
    kept: list[Any] = [None] * len(calls)
    while time.perf_counter() < until_s:
        for _ in range(chunk):
            kept[asked % len(calls)] = calls[asked % len(calls)]()
            asked += 1
        flying.append(_event(bench))
        if len(flying) >= (1 if duty < 1 else IN_FLIGHT):
            flying.popleft().synchronize()
            done += chunk
            marks.append((time.perf_counter(), done))
        if duty < 1:
            time.sleep(chunk * seconds * (1 - duty) / duty)
    bench.synchronize()
    return marks


def _event(bench: CalibrationDevice) -> Any:
    if not bench.on_gpu:
        return _Done()
    event = bench.torch.cuda.Event()
    event.record()
    return event


class _Done:
    """Event on the CPU, where a call has ended when it returns."""

    def synchronize(self) -> None: ...


class SampleFile:
    """Appender of records, each written atomically.

    Args:
        path: created, or continued.
        resume: keep existing records; without it an existing file is refused.

    Attributes:
        done: keys of finished cases.
        gpu: GPU of its records; None while it is empty.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.done: set[str] = set()
        self.gpu: str | None = None
        if path.suffix == ".gz":
            raise ConfigError(
                f"{path}: lines cannot be added to a compressed file; name one that ends in .jsonl"
            )
        if path.exists() and path.stat().st_size:
            if not resume:
                raise ConfigError(
                    f"{path}: is there already; add --resume to continue it, or name another file"
                )
            self._go_on()
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name another file with -o") from None

    def _go_on(self) -> None:
        for row in records(self.path):  # refuses another file before a byte is changed
            if row["record"] == "machine":
                self.gpu = str(row.get("gpu"))
            elif "case" in row and not _may_work_now(row):
                self.done.add(str(row["case"]))
        _drop_torn_line(self.path)

    def write(self, record: Mapping[str, object]) -> None:
        """Write one line, on disk when this returns."""
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Return all records of a file, compressed or not; an incomplete last line is left out.

    Raises:
        ConfigError: a line in between is not a record.
    """
    text = _text(path)
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines) and _is_torn(text):
                return
            raise ConfigError(
                f"{path}:{number}: not a JSON record; this is not a file of 'wattloop calibrate "
                "collect', or it is damaged: collect again"
            ) from None
        if not isinstance(record, dict) or "record" not in record:
            raise ConfigError(f"{path}:{number}: no field 'record'; is this a calibration file?")
        yield record


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"{path}: cannot be read ({reason}); name a file of 'wattloop calibrate collect'"
        ) from None


def _may_work_now(row: Mapping[str, Any]) -> bool:
    """Return whether a failed case may work now: a missing package may have been installed."""
    return str(row.get("error")).startswith(("ModuleNotFoundError", "ImportError"))


def _is_torn(text: str) -> bool:
    """Return whether it ends within a record, which a kill leaves."""
    begin = '{"record":'
    last = text[text.rfind("\n") + 1 :]
    return bool(last) and begin.startswith(last[: len(begin)])


def _drop_torn_line(path: Path) -> None:
    """Remove the incomplete last line of a killed collection."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])


class SectionResult(NamedTuple):
    """Results of a section's cases."""

    taken: int
    failed: int
    kept: int
    cases: int
    last_error: str = ""


Progress = Callable[[str, int, int, float], None]
"""Section, cases done, cases of the section, seconds of its budget left."""
RECORDS = {"kernels": "kernel", "host": "host", "power": "power", "steps": "step",
           "waiting": "step", "profile": "profile"}  # fmt: skip


class Collection:
    """Measurement of cases one by one, written as they come.

    Args:
        bench, sensor, file: where they run, what reads the energy, where they are written.
        hold_s: settling time and window of a power run.
        step_s: warm-up and window of a training step; one of several rounds takes half of it.
    """

    def __init__(
        self,
        bench: CalibrationDevice,
        sensor: GpuSensor,
        file: SampleFile,
        *,
        hold_s: tuple[float, float] = (0.7, 1.5),
        step_s: tuple[float, float] = (1.1, 2.0),
    ) -> None:
        self._bench = bench
        self._sensor = sensor
        self._file = file
        self._timer = Timer(bench)
        self._hold_s = hold_s
        self._step_s = step_s

    def take(
        self,
        section: str,
        cases: Sequence[CalibrationCase],
        budget_s: float,
        progress: Progress = lambda *_: None,
    ) -> SectionResult:
        """Measure the cases that the file lacks until the budget is spent.

        Raises:
            WattloopError: a case broke the GPU for this process, so that all others would fail.
        """
        end_s = time.monotonic() + budget_s
        taken = failed = kept = 0
        last_error = ""
        for number, case in enumerate(cases):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            progress(section, number, len(cases), left_s)
            if case.key in self._file.done:
                kept += 1
                continue
            record = self._record(case)
            self._file.write(record)
            self._file.done.add(case.key)
            taken += 1
            if record["error"] is not None:
                failed, last_error = failed + 1, f"{case.key}: {record['error']}"
                self._recover(last_error)
        progress(section, taken + kept, len(cases), 0.0)
        return SectionResult(taken, failed, kept, len(cases), last_error)

    def _record(self, case: CalibrationCase) -> Mapping[str, object]:
        head = {"record": RECORDS[case.section], "case": case.key, "family": case.family}
        try:
            return {**head, "params": dict(case.params), **self._measured(case), "error": None}
        except Exception as error:  # noqa: BLE001 - one case that fails must not end the collection
            reason = f"{type(error).__name__}: {error}"[:300]
            return {**head, "params": dict(case.params), "error": reason}
        finally:
            self._clean(case)

    def _measured(self, case: CalibrationCase) -> Mapping[str, object]:
        bench = self._bench
        if case.section == "host":
            return host_seconds(bench, case.family, case.params)
        if case.section == "power":
            return self._held(case)
        if case.section == "kernels":
            return self._timed(case)
        from wattloop.predict.calibrate.steps import measure_step, profile_step

        if case.section == "profile":
            return profile_step(bench, case.params)
        warm_up_s, window_s = self._step_s
        if case.section == "waiting":
            warm_up_s, window_s = warm_up_s / 2, window_s / 2
        return measure_step(
            bench, case.params, self._sensor, warm_up_s=warm_up_s, window_s=window_s
        )

    def _timed(self, case: CalibrationCase) -> Mapping[str, object]:
        work = build(case.family, case.params, self._bench)
        timed = self._timer.time(work.calls)
        seconds, host_s = timed.seconds, timed.host_s
        if work.less:
            less = self._timer.time(work.less)
            seconds, host_s = seconds - less.seconds, host_s - less.host_s
        return {
            "seconds": seconds,
            "spread": round(timed.spread, 4),
            "repeats": timed.repeats,
            "sets": len(work.calls),
            "host_s": host_s,
            "clock_mhz": self._sensor.clock_mhz(),
            "power_w": None,
            "window_s": seconds * timed.repeats * timed.rounds,
            "workspace_bytes": self._bench.workspace_bytes(work.calls[0]),
            **work.note,
        }

    def _held(self, case: CalibrationCase) -> Mapping[str, object]:
        duty = float(str(case.params.get("duty", 1.0)))
        calls: Sequence[Callable[[], Any]] = ()
        if case.family != "idle":
            calls = build(case.family, case.params, self._bench).calls
        settle_s, window_s = self._hold_s
        return hold(
            self._bench, calls, self._sensor, duty=duty, settle_s=settle_s, window_s=window_s
        )

    def _recover(self, last_error: str) -> None:
        """Free the memory of a failed case. A fault of the GPU itself stays in its context."""
        gc.collect()
        try:
            self._bench.synchronize()
            self._bench.free()
        except RuntimeError:
            raise WattloopError(
                f"the GPU stopped at {last_error}; nothing more can run on it in this process. "
                f"Continue after that case with 'wattloop calibrate collect -o {self._file.path} "
                "--resume', and if it happens again see 'dmesg | grep -i xid'"
            ) from None

    def _clean(self, case: CalibrationCase) -> None:
        """Free a model's memory: autograd graphs hold large tensors in cycles."""
        if case.section in ("steps", "waiting", "profile"):
            gc.collect()
            self._bench.free()


def collect(
    bench: CalibrationDevice,
    sensor: GpuSensor,
    file: SampleFile,
    *,
    sections: Sequence[str] = SECTIONS,
    budget_s: float,
    progress: Progress = lambda *_: None,
) -> Mapping[str, SectionResult]:
    """Measure what the file lacks of `sections` within `budget_s`; return the results of each.

    Raises:
        ConfigError: the file belongs to another GPU.
    """
    end_s = time.monotonic() + budget_s
    machine = machine_record(bench, sensor)
    if file.gpu is not None and file.gpu != machine["gpu"]:
        raise ConfigError(
            f"{file.path}: field 'gpu' says {file.gpu}, but this is {machine['gpu']}; "
            "name another file with -o"
        )
    file.write(machine)
    tiny = not bench.on_gpu
    # On the CPU the suite only tests the program: settling would show nothing.
    collection = (
        Collection(bench, sensor, file, hold_s=(0.02, 0.05), step_s=(0.01, 0.02))
        if tiny
        else Collection(bench, sensor, file)
    )
    results: dict[str, SectionResult] = {}
    left = list(sections)
    while left:
        section = left[0]
        share = SHARES[section] / sum(SHARES[name] for name in left)
        section_s = max(0.0, end_s - time.monotonic()) * share
        wanted = possible(cases(section, tiny=tiny), bench.precisions)
        results[section] = collection.take(section, wanted, section_s, progress)
        left.pop(0)
    return results


def possible(wanted: Sequence[CalibrationCase], precisions: Set[str]) -> list[CalibrationCase]:
    """Leave out cases in a precision that the GPU lacks."""

    def has(case: CalibrationCase) -> bool:
        named = {case.params.get(name) for name in ("dtype", "to", "precision")} - {None}
        return named <= precisions

    return [case for case in wanted if has(case)]


def chosen_sections(text: str) -> list[str]:
    """Parse a list of sections such as `kernels,power`, in the order of the suite.

    Raises:
        ConfigError: unknown section.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SECTIONS:
            raise ConfigError(f"--sections {name}: known are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in names] if names else list(SECTIONS)
