"""Program of the measured process: `python probe.py TOOL TASK [NUMBERS...]`, prints JSON.

It runs in the tool's own environment and imports nothing that a bare interpreter has not loaded
already, so that what a tool imports is counted as the tool's. `none` is the same program without
any tool.

Tasks:
    import                  import the tool
    setup INTERVAL          first start of a measurement, imports it needs included
    windows INTERVAL N      begin and end N windows inside a measurement
    sleep INTERVAL SECONDS  CPU time of tracking while the program sleeps, in slices of 1 s
    stall INTERVAL SECONDS  delays of the main thread while it computes
    exit INTERVAL           leave the program with the measurement still running
    stop INTERVAL           end a measurement
"""

# ruff: noqa: PTH123, PTH208 - pathlib is among what tools import, and counted as theirs
import os
import sys
import time

__all__ = ["TASKS", "TOOLS"]

SLICE_S = 1.0
SETTLE_S = 4.0
"""Until the first flush, the start of processes and what else comes soon after the beginning."""
WORK = range(120)


class Nothing:
    """The program without a tool."""

    def load(self):
        pass

    def start(self, interval_s):
        pass

    def window(self):
        pass

    def stop(self):
        pass

    def reads(self):
        """Return the sources that the tool reports."""
        return ""

    def readings(self, begin_s, end_s):
        """Return the tool's reads between two moments; 0 if unknown."""
        return 0

    def reader(self):
        """Return the process id of the tool's process that is not a child of this one; 0 if
        none.
        """
        return 0


class Wattloop(Nothing):
    sampler = None

    def load(self):
        import wattloop

        self.wattloop = wattloop

    def start(self, interval_s):
        self.run = self.wattloop.measure("run", interval_s=interval_s, sampler=self.sampler)
        self.run.begin()

    def window(self):
        self.wattloop.measure("window").begin().end()

    def stop(self):
        self.run.end()

    def reads(self):
        return ", ".join(f"{d.name} ({d.source})" for d in self.run.result.domains) or "nothing"

    def readings(self, begin_s, end_s):
        from wattloop.measure.api import active_session

        session = active_session()
        session.between(begin_s, end_s)  # imports only sampled data
        return sum(begin_s <= t <= end_s for t in session.feeds[0].tracks[0].times_s)

    def reader(self):
        from wattloop.measure.api import active_session

        return active_session().reader.sampling_pid


class WattloopThread(Wattloop):
    """Sensors read by a thread of the program, for as long as it runs."""

    sampler = "thread"


class WattloopFullRate(WattloopThread):
    """The thread without the budget that reduces its rate on a slow machine."""

    def start(self, interval_s):
        from wattloop.measure import sampler

        sampler.MOST_STRETCH = 1.0
        sampler.DUTY_IN_PROCESS = 1.0
        super().start(interval_s)


class WattloopApi(Wattloop):
    """All modules that `wattloop.measure` loads on first use."""

    def load(self):
        super().load()
        import wattloop.measure.api  # noqa: F401 - loading it is what is measured


class CodeCarbon(Nothing):
    def load(self):
        from codecarbon import OfflineEmissionsTracker

        self.tracker_class = OfflineEmissionsTracker

    def start(self, interval_s):
        # Offline and without files: the cheapest way to use it.
        self.tracker = self.tracker_class(
            country_iso_code="FRA",
            measure_power_secs=interval_s,
            log_level="critical",
            save_to_file=False,
        )
        self.tracker.start()

    def window(self):
        self.tracker.start_task("window")
        self.tracker.stop_task("window")

    def stop(self):
        self.tracker.stop()

    def reads(self):
        kinds = []
        for part in self.tracker._hardware:
            mode = getattr(part, "_mode", "")
            kinds.append(f"{type(part).__name__}{f' ({mode})' if mode else ''}")
        return ", ".join(kinds)


class Zeus(Nothing):
    def load(self):
        from zeus.monitor import ZeusMonitor

        self.monitor_class = ZeusMonitor

    def start(self, interval_s):
        # It has no sampling interval: counters are read at the edges of windows.
        self.monitor = self.monitor_class()
        self.monitor.begin_window("run")

    def window(self):
        self.monitor.begin_window("window")
        self.monitor.end_window("window")

    def stop(self):
        self.monitor.end_window("run")

    def reads(self):
        monitor = self.monitor
        found = f"{len(monitor.gpu_indices)} GPUs, {len(monitor.cpu_indices)} CPU counters"
        return found if monitor.gpu_indices or monitor.cpu_indices else "nothing: windows of time"


class Carbontracker(Nothing):
    def load(self):
        from carbontracker.tracker import CarbonTracker

        self.tracker_class = CarbonTracker

    def start(self, interval_s):
        self.tracker = self.tracker_class(
            epochs=10**9, epochs_before_pred=0, update_interval=interval_s, verbose=0
        )
        self.tracker.epoch_start()

    def window(self):
        self.tracker.epoch_end()
        self.tracker.epoch_start()

    def stop(self):
        self.tracker.epoch_end()
        self.tracker.stop()

    def reads(self):
        parts = self.tracker.tracker.components
        handlers = [f"{type(p.handler).__name__}" for p in parts if getattr(p, "handler", None)]
        return ", ".join(handlers) or "nothing"


class Ea2p(Nothing):
    def load(self):
        from ea2p import PowerMeter

        self.meter_class = PowerMeter

    def start(self, interval_s):
        with open("ea2p.json", "w") as file:
            file.write('{"devices_list": "cpu", "energy_unit": "J", ')
            file.write(f'"sampling_freq": {interval_s}}}')
        self.meter = self.meter_class(config_file="ea2p.json", print_to_cli=False)
        self.meter.start_measure("benchmark", "run")

    def window(self):
        # It knows one measurement at a time: a window ends the running one.
        self.meter.stop_measure()
        self.meter.start_measure("benchmark", "window")

    def stop(self):
        self.meter.stop_measure()

    def reads(self):
        power = self.meter.power
        return type(getattr(power, "intel_power", None) or power.amd_power).__name__


class Perun(Nothing):
    """A measurement is a call, since Perun measures functions only."""

    def load(self):
        import perun

        self.perun = perun

    def start(self, interval_s):
        self.perun.perun(sampling_period=interval_s, data_out="perun")(Nothing.window)(self)

    def window(self):
        raise SystemExit("measures functions as a whole")


class WakeUps(Nothing):
    """Cost of any Python thread that wakes up at an interval and does nothing."""

    def start(self, interval_s):
        import threading

        def loop():
            while not self.ended:
                time.sleep(interval_s)

        self.ended = False
        threading.Thread(target=loop, daemon=True).start()

    def stop(self):
        self.ended = True


TOOLS = {
    "none": Nothing,
    "wattloop": Wattloop,
    "wattloop, thread": WattloopThread,
    "wattloop, thread at full rate": WattloopFullRate,
    "wattloop.measure.api": WattloopApi,
    "codecarbon": CodeCarbon,
    "zeus": Zeus,
    "carbontracker": Carbontracker,
    "ea2p": Ea2p,
    "perun": Perun,
    "wake-ups": WakeUps,
}


def task_import(tool):
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    tool.load()
    return {
        "ms": (time.perf_counter_ns() - wall_ns) / 1e6,
        "cpu_ms": (time.process_time_ns() - cpu_ns) / 1e6,
    }


def task_setup(tool, interval_s):
    tool.load()
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    tool.start(interval_s)
    ms, cpu_ms = (time.perf_counter_ns() - wall_ns) / 1e6, (time.process_time_ns() - cpu_ns) / 1e6
    time.sleep(0.05)
    reads = tool.reads()
    tool.stop()
    return {"ms": ms, "cpu_ms": cpu_ms, "reads": reads}


def task_windows(tool, interval_s, count):
    tool.load()
    tool.start(interval_s)
    time.sleep(0.3)
    times_ns, window, now = [], tool.window, time.perf_counter_ns
    for _ in range(10):
        window()
    cpu_ns = time.process_time_ns()
    give_up_ns = now() + 20_000_000_000
    for _ in range(int(count)):
        begin_ns = now()
        window()
        times_ns.append(now() - begin_ns)
        if begin_ns > give_up_ns:
            break
    time.sleep(0.6)  # deferred work counts too
    cpu_ns = time.process_time_ns() - cpu_ns
    tool.stop()
    times_ns.sort()
    return {
        "us": times_ns[len(times_ns) // 2] / 1e3,
        "p99_us": times_ns[int(0.99 * len(times_ns))] / 1e3,
        "cpu_us": cpu_ns / 1e3 / len(times_ns),
    }


def task_sleep(tool, interval_s, seconds):
    tool.load()
    tool.start(interval_s)
    time.sleep(min(SETTLE_S, seconds))
    slices = []
    reader = tool.reader()
    start_reader_s = _tree_cpu_s(reader) if reader else 0.0
    begin_s = time.monotonic()
    begin_cpu_s = cpu_s = _cpu_s()
    for number in range(1, round(seconds / SLICE_S) + 1):
        time.sleep(max(0.0, begin_s + number * SLICE_S - time.monotonic()))
        now_cpu_s = _cpu_s()
        slices.append(100 * (now_cpu_s - cpu_s) / SLICE_S)
        cpu_s = now_cpu_s
    mean = 100 * (cpu_s - begin_cpu_s) / (time.monotonic() - begin_s)
    end_s = time.monotonic()
    overhead_s = _tree_cpu_s(reader) - start_reader_s if reader else 0.0
    memory_mib = _memory_mib(reader) if reader else 0.0
    rate_hz = tool.readings(begin_s, end_s) / (end_s - begin_s)
    tool.stop()
    return {
        "slices_pct": slices,
        "mean_pct": mean,
        "rate_hz": rate_hz,
        "beside_pct": 100 * overhead_s / (end_s - begin_s),
        "beside_start_ms": 1e3 * start_reader_s,
        "beside_mib": memory_mib,
    }


def task_stall(tool, interval_s, seconds):
    tool.load()
    tool.start(interval_s)
    time.sleep(min(SETTLE_S, seconds))
    now, times_ns = time.perf_counter_ns, []
    append, end_ns = times_ns.append, now() + int(seconds * 1e9)
    before_ns = now()
    while before_ns < end_ns:
        for _ in WORK:
            pass
        after_ns = now()
        append(after_ns - before_ns)
        before_ns = after_ns
    tool.stop()
    times_ns.sort()
    usual_ns = times_ns[len(times_ns) // 2]
    held_up_ns = sum(t - usual_ns for t in times_ns if t > usual_ns + 50_000)
    return {
        "p999_us": (times_ns[int(0.999 * len(times_ns))] - usual_ns) / 1e3,
        "worst_us": (times_ns[-1] - usual_ns) / 1e3,
        "ms_per_s": held_up_ns / 1e6 / seconds,
    }


def task_exit(tool, interval_s):
    tool.load()
    tool.start(interval_s)
    time.sleep(0.3)
    return {"left_s": time.monotonic()}


def task_stop(tool, interval_s):
    tool.load()
    tool.start(interval_s)
    time.sleep(1.0)
    begin_s = time.monotonic()
    tool.stop()
    return {"ms": 1e3 * (time.monotonic() - begin_s)}


TASKS = {
    name.removeprefix("task_"): function
    for name, function in list(globals().items())
    if name.startswith("task_")
}


def _cpu_s():
    """Return the CPU seconds of this process and of its present children."""
    total_s = time.process_time()
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            children = file.read().split()
        for child in children:
            total_s += _tree_cpu_s(child)
    return total_s


def _tree_cpu_s(pid):
    total_ns = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total_ns += int(file.read().split()[0])
    except OSError:
        pass
    return total_ns / 1e9


def _memory_mib(pid):
    """Return the memory of a process, with its share of common memory."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024


def main():
    tool, task = TOOLS[sys.argv[1]](), TASKS[sys.argv[2]]
    result = task(tool, *map(float, sys.argv[3:]))
    pairs = ", ".join(f'"{key}": {_json(value)}' for key, value in result.items())
    # Tools print too; the result is the last line with this prefix.
    print(f"\nPROBE {{{pairs}}}", flush=True)


def _json(value):
    if isinstance(value, str):
        return '"' + value.replace("\\", "/").replace('"', "'").replace("\n", " ") + '"'
    return str(value)


if __name__ == "__main__":
    main()
