"""Facts about a stored run that the rules may use."""

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import select

from wattloop.accounting.idle import IdleLine, idle_path, load_idle
from wattloop.advise.gpu_facts import GpuFacts, SignalTrace, TraceInterval, gpu_facts
from wattloop.core.errors import StoreError
from wattloop.core.records import Scope
from wattloop.core.results import RunStatus, inside_name, non_overlapping
from wattloop.core.settings import Settings
from wattloop.integrations.run_phases import Phase, StepTotals
from wattloop.integrations.stored_steps import read_step_totals
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, list_experiments
from wattloop.store.run_record import read_events, read_steps
from wattloop.store.runs import RunRecord, child_runs
from wattloop.store.sample_queries import read_curve
from wattloop.store.samples import Series, power_series, series_of
from wattloop.store.schema import runs


class IdleNode(NamedTuple):
    """From the end of a run to the next one that was measured on the machine.

    Attributes:
        power_w: of the idle machine, of the devices that its idle line covers.
    """

    waited_s: float
    power_w: float
    source: str


def idle_node(store: Store, record: RunRecord) -> IdleNode | None:
    """None where the machine has no idle line, or no later run says how long it waited."""
    location = str(store.journals.parent / "runs.db")
    if record.ended_wall_s is None or not record.machine_id:
        return None
    try:
        idle = load_idle(idle_path(location, record.machine_id))
    except StoreError:  # damaged, or by a newer version: advice does without
        return None
    if idle is None or not idle.lines:
        return None
    query = (
        select(runs.c.started_wall_s)
        .where(runs.c.machine_id == record.machine_id)
        .where(runs.c.started_wall_s > record.ended_wall_s)
        .order_by(runs.c.started_wall_s)
        .limit(1)
    )
    with store.reading() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    return IdleNode(
        float(row[0]) - record.ended_wall_s,
        _power_w(idle.lines),
        f"by the idle line of {idle.note(idle.fitted_wall_s).split(' (')[0].split()[-1]}",
    )


def _power_w(lines: Mapping[str, IdleLine]) -> float:
    """Of devices that do not overlap; a meter at the socket covers them all."""
    if "node" in lines:
        return lines["node"].beta_w
    names = non_overlapping((name, inside_name(name)) for name in lines)
    return sum(lines[name].beta_w for name in names)


EVENT = "precision"
"""Type of the event with which an integration tells it."""
NAMES = {
    **dict.fromkeys(("fp32", "float32", "32", "32-true", "single", "full", "f32"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "16", "16-mixed", "16-true", "half", "f16"), "fp16"),
    **dict.fromkeys(("tf32",), "tf32"),
    **dict.fromkeys(("fp8", "float8"), "fp8"),
    **dict.fromkeys(("fp64", "float64", "64", "64-true", "double"), "fp64"),
}
KEYS = ("precision", "dtype", "torch-dtype", "compute-dtype", "mixed-precision", "amp-dtype")
FLAGS = {
    **{name: NAMES[name] for name in ("fp32", "bf16", "fp16", "tf32", "fp8", "half")},
    "amp": "amp",
    "no-amp": "fp32",
}
OFF = ("no", "none", "off", "false", "0")


class Precision(NamedTuple):
    """`fp32`, `bf16`, `fp16`, ..., and who said so."""

    name: str
    said_by: str


def recorded_precision(
    record: RunRecord, events: Iterable[Mapping[str, Any]] = ()
) -> Precision | None:
    """Return what integration, tags or command line say; None where they contradict each other."""
    found = [
        Precision(name, "the training loop")
        for event in events
        if event.get("type") == EVENT and (name := NAMES.get(str(event.get("value")).lower()))
    ]
    found = found or [*_in_tags(record.tags), *_in_words(record.command or ())]
    names = {precision.name for precision in found}
    return found[0] if len(names) == 1 and found[0].name != "amp" else None


def _in_tags(tags: Mapping[str, Any]) -> list[Precision]:
    said = ((key, _meant(key, str(value))) for key, value in tags.items())
    return [Precision(name, f"the tag {key}={tags[key]}") for key, name in said if name]


def _in_words(words: Iterable[str]) -> list[Precision]:
    """`--precision fp32`, `--dtype=float32`, `trainer.precision=32`, `--bf16`, `--no-amp`."""
    found = []
    rest = list(words)
    for place, word in enumerate(rest):
        key, separator, value = word.partition("=")
        name: str | None
        if separator:
            name, said = _meant(key, value), word
        else:
            following = rest[place + 1] if place + 1 < len(rest) else ""
            name, said = _meant(word, following), f"{word} {following}"
            if name is None and word.startswith("--"):
                following_is_value = following.lower() in (*OFF, "1", "true")
                name, said = FLAGS.get(_plain(word)), word
                if name and following_is_value and following.lower() in OFF:
                    name = None  # `--bf16 false`
        if name:
            found.append(Precision(name, f"the argument {said}"))
    return found


def _meant(key: str, value: str) -> str | None:
    plain = _plain(key)
    if plain not in KEYS:
        return None
    if plain == "mixed-precision" and value.lower() in OFF:
        return "fp32"
    return NAMES.get(value.lower().removeprefix("torch."))


def _plain(key: str) -> str:
    """`--Trainer.precision` -> `precision`."""
    return re.sub(r"_", "-", key.lstrip("-").rpartition(".")[2].lower())


SLOWER = 0.05
"""A cap that costs more time than this is a trade-off for the user, not waste."""


class TriedCap(NamedTuple):
    """The cap with the least energy among those that cost little time, by one experiment.

    Attributes:
        cap_w: the cap; the limit it was compared with when no cap saves anything.
        saving_share, time_change_share: against that limit.
        beyond_noise: whether repeats allow to say so.
        source: `by the sweep of 12 May 2026 (sweep-..., simulated)`.
    """

    cap_w: float
    saving_share: float
    time_change_share: float
    beyond_noise: bool
    source: str


def tried_caps(store: Store, record: RunRecord) -> tuple[TriedCap, ...]:
    """One entry per finished sweep or cap search of this run's command, newest first."""
    if not record.command:
        return ()
    found = []
    for experiment in list_experiments(store, "sweep", "cap"):
        if experiment.status != "finished" or not _same_work(experiment, record):
            continue
        of = _of_sweep if experiment.kind == "sweep" else _of_search
        tried = of(experiment)
        if tried is not None:
            found.append(tried)
    return tuple(found)


def _same_work(experiment: Experiment, record: RunRecord) -> bool:
    """The same command, on the same machine as far as that is known."""
    host = experiment.facts.get("host")
    if host and record.host and host != record.host:
        return False
    return _words(experiment.spec.get("command") or ()) == _words(record.command or ())


def _words(command: Sequence[str]) -> list[str]:
    """Without the folder of the program: `/usr/bin/python3` is `python3`."""
    return [str(command[0]).rpartition("/")[2], *map(str, command[1:])] if command else []


def _of_sweep(experiment: Experiment) -> TriedCap | None:
    """From the summary that the sweep stored when it ended."""
    summary = experiment.facts.get("summary") or {}
    axes = {str(axis["name"]): axis for axis in experiment.facts.get("axes") or ()}
    caps = [name for name in axes if name.endswith("power_limit")]
    if len(caps) != 1:
        return None
    points = [p for p in summary.get("points") or () if _only_capped(p, caps[0], axes)]
    default_w = _cap_w(axes[caps[0]], str(axes[caps[0]].get("default")))
    best = TriedCap(default_w or 0.0, 0.0, 0.0, False, _source(experiment, "sweep", summary))
    seen = False
    for point in points:
        gains = point.get("gains") or {}
        cap_w = _cap_w(axes[caps[0]], str(point["levels"][caps[0]]))
        if cap_w is None or "energy" not in gains or "time" not in gains:
            continue
        seen = True
        saving = float(gains["energy"]["value_pct"]) / 100
        slower = -float(gains["time"]["value_pct"]) / 100
        if saving > best.saving_share and slower <= SLOWER:
            noise = bool(gains["energy"].get("beyond_noise"))
            best = best._replace(
                cap_w=cap_w, saving_share=saving, time_change_share=slower, beyond_noise=noise
            )
    return best if seen else None


def _only_capped(point: Mapping[str, Any], cap: str, axes: Mapping[str, Any]) -> bool:
    levels = point.get("levels") or {}
    others = (name for name in levels if name != cap)
    return cap in levels and all(levels[n] == axes.get(n, {}).get("default") for n in others)


def _cap_w(axis: Mapping[str, Any], label: str) -> float | None:
    for level in axis.get("levels") or ():
        if level["label"] == label and level["number"] is not None:
            return float(level["number"])
    return None


def _of_search(experiment: Experiment) -> TriedCap | None:
    """From the cap that `wattloop cap find` chose, by the metric that was asked of it."""
    choice = experiment.facts.get("choice") or {}
    gain, loss = choice.get("energy_gain_pct"), choice.get("time_loss_pct")
    if not choice.get("cap_w") or gain is None or loss is None:
        return None
    mean, low, _ = _interval(gain)
    return TriedCap(
        cap_w=float(choice["cap_w"]),
        saving_share=mean / 100,
        time_change_share=_interval(loss)[0] / 100,
        beyond_noise=low > 0,
        source=_source(experiment, "cap search", {}),
    )


def _interval(value: Any) -> tuple[float, float, float]:
    if isinstance(value, Mapping):
        numbers = [float(v) for v in value.values()]
    else:
        numbers = [float(v) for v in value]
    return numbers[0], numbers[1], numbers[2]


def _source(experiment: Experiment, what: str, summary: Mapping[str, Any]) -> str:
    day = datetime.fromtimestamp(experiment.created_wall_s).astimezone()
    kind = f", {summary['provenance']}" if summary.get("provenance") else ""
    return f"by the {what} of {day:%d %B %Y} ({experiment.experiment_id}{kind})"


POINTS = 3_600
"""Readings per curve: an hour at one a second; longer runs are looked at in wider bins."""
SIGNALS = ("utilisation", "memory_utilisation", "sm_clock", "memory_used", "power_limit")
SERVERS = re.compile(
    r"(^|[^a-z])(serve|server|serving|vllm|tgi|triton|tritonserver|uvicorn|gunicorn|notebook|"
    r"jupyter|jupyterlab|ipython|streamlit|gradio|ollama|sglang|inference)([^a-z]|$)"
)
"""Programs that wait for requests or for a person."""
LONG_RUN_S = 60.0
"""Imports, the first batch and the first checkpoint are a natural part of a shorter run, so phases
of a run below this length are not judged."""


class HostFacts(NamedTuple):
    """The machine without its GPUs.

    Attributes:
        utilisation: of its CPUs, 0 to 1; None where no meter reads it.
        idle_w: power of the measured parts without work.
    """

    utilisation: SignalTrace | None
    idle_w: float
    idle_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run.

    Attributes:
        energy_j, duration_s: of the run; both above 0.
        gpus: those whose power and limit are known.
        steps: training steps, also of programs that measured themselves within this run.
        totals: steps and phases that `wattloop run` noticed; None without any.
        tried: caps that sweeps and cap searches of the same command found best.
        node: what the machine did after the run.
    """

    record: RunRecord
    energy_j: float
    duration_s: float
    gpus: tuple[GpuFacts, ...] = ()
    settings: Settings = field(default_factory=Settings)
    steps: tuple[Mapping[str, Any], ...] = ()
    precision: Precision | None = None
    tried: tuple[TriedCap, ...] = ()
    node: IdleNode | None = None
    totals: StepTotals | None = None
    host: HostFacts | None = None

    def phase(self, name: str) -> Phase | None:
        """Return a phase of the run; None where it has none, or none that is judged."""
        if self.totals is None or self.duration_s < LONG_RUN_S or self.waits_on_purpose:
            return None
        found = next((phase for phase in self.totals.phases if phase.name == name), None)
        return found if found is not None and 0 < found.time_s <= self.duration_s else None

    def long_phase(self, name: str, share: float, shortest_s: float) -> Phase | None:
        """Return a phase with this share of the run and this length, if its energy is known."""
        phase = self.phase(name)
        if phase is None or not phase.energy_j or phase.time_s < shortest_s:
            return None
        return phase if phase.time_s >= share * self.duration_s else None

    def cpu_utilisation(self, span: TraceInterval) -> float | None:
        trace = None if self.host is None else self.host.utilisation
        return None if trace is None else trace.within(span).mean()

    @property
    def whole(self) -> TraceInterval:
        return TraceInterval(0.0, self.duration_s)

    @property
    def working(self) -> TraceInterval | None:
        """From the first to the last work of any GPU; None when none had any."""
        busy = [stretch for gpu in self.gpus for stretch in gpu.busy_stretches]
        if not busy:
            return None
        return TraceInterval(min(s.begin_s for s in busy), max(s.end_s for s in busy))

    @property
    def used_gpus(self) -> tuple[GpuFacts, ...]:
        """The GPUs that had work for a good part of the working time."""
        span = self.working
        if span is None:
            return ()
        most = max(gpu.busy_share(span) for gpu in self.gpus)
        return tuple(g for g in self.gpus if g.busy_share(span) >= 0.3 * most)

    @property
    def command(self) -> list[str]:
        return list(self.record.command or ())

    def run_again(
        self, *, options: Sequence[str] = (), more: Mapping[str, str] | None = None
    ) -> str:
        """Return `wattloop run -- CMD` with changed arguments; empty if none can run or change."""
        if not self.command or more == {}:
            return ""
        words, changes = list(self.command), more or {}
        for place, word in enumerate(self.command):
            key, separator, _ = word.partition("=")
            if key not in changes:
                continue
            if separator:
                words[place] = f"{key}={changes[key]}"
            elif place + 1 < len(words):
                words[place + 1] = changes[key]
        return shlex.join(["wattloop", "run", *options, "--", *words])

    def scaled_argument(self, names: Iterable[str], factor: int, least: int = 1) -> dict[str, str]:
        """Return the first of these arguments with its number multiplied: `--batch-size 32`."""
        for name in names:
            for place, word in enumerate(self.command):
                key, separator, value = word.partition("=")
                text = value if separator else "".join(self.command[place + 1 : place + 2])
                if key == name and text.isdecimal():
                    return {name: str(max(least, factor * int(text)))}
        return {}

    @property
    def waits_on_purpose(self) -> bool:
        """True if command, name or tags say that it answers requests or a person."""
        said = [*self.command[:6], self.record.name, *map(str, self.record.tags.values())]
        return any(SERVERS.search(word.lower()) for word in said)


MOST_STEPS = 5_000
"""Of more steps, evenly spread ones tell how long a step waits for its data."""


def read_facts(
    store: Store, record: RunRecord, settings: Settings | None = None
) -> RunFacts | None:
    """Return the facts of a run; None where `reason_without_facts` has a reason."""
    result = record.result
    if reason_without_facts(record) or result is None or result.energy_j is None:
        return None
    runs = [record.run_id, *(child.run_id for child in child_runs(store, record.run_id))]
    events = [event for run_id in runs for event in read_events(store, run_id)]
    return RunFacts(
        record=record,
        energy_j=result.energy_j,
        duration_s=result.duration_s,
        gpus=_gpus(store, record),
        settings=_settings(record) if settings is None else settings,
        steps=tuple(step for run_id in runs for step in read_steps(store, run_id, MOST_STEPS)),
        precision=recorded_precision(record, events),
        tried=tried_caps(store, record),
        node=idle_node(store, record),
        # steps that the program recorded by itself have no phases
        totals=read_step_totals(store, record, points=()),
        host=_host(store, record),
    )


def reason_without_facts(record: RunRecord) -> str:
    """Return why no rule can judge a run; empty where rules can."""
    if record.status is RunStatus.RUNNING:
        return "it is still running"
    if not record.counted:
        return "its energy is counted by another run"
    result = record.result
    if result is None or not result.energy_j or not math.isfinite(result.energy_j):
        return "no energy was measured"
    return "" if result.duration_s > 0 else "it has no duration"


def _application_domains(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    application = (record.accounting or {}).get("application") or {}
    return {d["name"]: d for d in application.get("domains") or ()}


def _host(store: Store, record: RunRecord) -> HostFacts | None:
    """By the machine's idle line, else the lowest power of the run, which is at least that."""
    assert record.result is not None
    curves, lines = _Curves(store, record), _application_domains(record)
    idle_w, sources = 0.0, set()
    for domain in record.result.counted:
        if domain.scope is Scope.GPU:
            continue
        idle_j = lines.get(domain.name, {}).get("idle_j")
        power = curves.power(domain.name)
        if idle_j:
            idle_w += float(idle_j) / record.result.duration_s
            sources.add("this machine's idle line")
        elif power is not None:
            idle_w += power.quantile(0.02) or 0.0
            sources.add("the lowest power of this run")
    if not sources:
        return None
    return HostFacts(curves.signal("cpu/utilisation"), idle_w, " and ".join(sorted(sources)))


def _gpus(store: Store, record: RunRecord) -> tuple[GpuFacts, ...]:
    assert record.result is not None
    curves = _Curves(store, record)
    lines = _application_domains(record)
    found = []
    for domain in record.result.scope_domains(Scope.GPU):
        power = curves.power(domain.name)
        if power is None:
            continue
        signals = _Signals(curves, domain.name)
        gpu = gpu_facts(domain, power, signals, record.result.duration_s, lines.get(domain.name))
        if gpu is not None:
            found.append(gpu)
    return tuple(found)


class _Signals(Mapping[str, SignalTrace]):
    """Signals of one device, each read at its first use: a node may have dozens."""

    def __init__(self, curves: "_Curves", device: str) -> None:
        self._curves, self._device = curves, device
        self._read: dict[str, SignalTrace | None] = {}

    def __getitem__(self, name: str) -> SignalTrace:
        if name not in self._read:
            self._read[name] = self._curves.signal(f"{self._device}/{name}")
        trace = self._read[name]
        if trace is None:
            raise KeyError(name)
        return trace

    def __iter__(self) -> Iterator[str]:
        return (name for name in SIGNALS if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Curves:
    """Curves of one run, by name."""

    def __init__(self, store: Store, record: RunRecord) -> None:
        self._store, self._record = store, record
        self._series: dict[str, list[Series]] = {}
        for series in series_of(record.feeds):
            self._series.setdefault(series.name, []).append(series)

    def power(self, name: str) -> SignalTrace | None:
        """From the gauge where there is one: a counter's steps blur short changes."""
        series = power_series(self._record.feeds).get(name)
        return None if series is None else self._read(series)

    def signal(self, name: str) -> SignalTrace | None:
        known = [s for s in self._series.get(name, ()) if s.kind == "signal"]
        return self._read(known[0]) if known else None

    def _read(self, series: Series) -> SignalTrace | None:
        record = self._record
        curve = read_curve(self._store, record.run_id, series, POINTS)
        trace = SignalTrace.of(curve.times_s, curve.mean, record.started_s)
        return trace if trace.values else None


def _settings(record: RunRecord) -> Settings:
    """Those of the run that advice needs; what an older version stored is taken as it is."""
    file, zone = (str(record.settings.get(name) or "") for name in ("carbon_file", "zone"))
    return Settings(carbon_file=file, zone=zone)
