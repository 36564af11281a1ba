"""Executor of a command: any program, with metrics parsed from its output and files."""

import csv
import json
import math
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.files import user_path
from wattloop.core.process import ProcessGroup, find_program, last_lines, stops_deferred
from wattloop.core.settings import Settings
from wattloop.measure.command import child_environment
from wattloop.trials.experiment_lock import TRIAL_VARIABLE
from wattloop.tune.executors.base import TrainedSoFar
from wattloop.tune.executors.cap_search import CapSteps
from wattloop.tune.executors.pause_channel import PauseChannel
from wattloop.tune.executors.training_curve import TrainingCurve
from wattloop.tune.executors.training_executor import (
    CandidateFiles,
    ReportingExecutor,
    SegmentEnd,
    SegmentProgress,
    classify_output,
    epochs_behind,
)
from wattloop.tune.levers import GPUS, gpu_variables
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Segment, Status, Value
from wattloop.tune.segment_meter import SegmentMeter

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
PAIR = re.compile(rf"(?<![\w./-])([A-Za-z_][\w./-]*)\s*[=:]\s*({NUMBER})(?![\w.])(\s?%)?", re.I)
EPOCH = re.compile(r"\bepochs?\b\s*[:=#]?\s*\[?\s*(\d+(?:\.\d+)?)", re.I)
MOST_NAMES = 100
EVENT, WAITS = "wattloop", "wattloop.waits"


class MetricReport(NamedTuple):
    """Metrics of one line, or an event of a program that uses `current_trial()`."""

    metrics: dict[str, float]
    epoch: float | None = None
    event: str = ""
    """`begins`, `counts` (it marks the ends of its epochs), `epoch` (has ended), `steps`, `paused`.
    """
    waits: bool = False
    """True when the program waits for a reply."""


class MetricLines:
    """Parser of `accuracy=0.93`, `epoch 3 accuracy: 0.93`, a JSON object, or a row of CSV.

    `Epoch 3/10` on a line of its own holds for the lines that follow. Of the parts of a line that
    carriage returns overwrite, as progress bars do, only the last counts.

    Args:
        wanted: the quality metric; `accuracy 0.93` without a sign is understood for it
            alone.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = re.compile(rf"(?<![\w./-]){re.escape(wanted)}\s+({NUMBER})(?![\w.])", re.I)
        self._name = wanted
        self._epoch: float | None = None
        self._columns: list[str] | None = None

    def parse(self, line: str) -> MetricReport | None:
        line = line.rstrip("\r\n").rpartition("\r")[2].strip()
        if not line:
            return None
        if line.startswith("{"):
            found = _json(line)
            if found is not None:
                return _of_mapping(found)
        metrics = {
            name: float(text) / (100.0 if percent else 1.0)
            for name, text, percent in PAIR.findall(line)[:MOST_NAMES]
        }
        epoch = self._epoch_of(line, metrics)
        bare = self._wanted.search(line) if self._name else None
        if bare is not None and self._name not in metrics:
            metrics[self._name] = float(bare.group(1))
        metrics.pop("step", None)
        if not metrics and epoch is None:
            return None
        return MetricReport(metrics, self._epoch if epoch is None else epoch)

    def row(self, line: str) -> MetricReport | None:
        """Parse a line of a file: JSON, or CSV with the header of its first line."""
        if line.lstrip().startswith("{"):
            found = _json(line)
            return None if found is None else _of_mapping(found)
        cells = next(csv.reader([line]), [])
        if not cells:
            return None
        if self._columns is None:
            if any(_is_number(cell) for cell in cells):  # no header: lines as in the output
                return self.parse(line)
            if len(cells) > 1 or not PAIR.search(line):
                self._columns = [cell.strip() for cell in cells]
                return None
            return self.parse(line)
        if [cell.strip() for cell in cells] == self._columns:  # the file was written again
            return None
        values = dict(zip(self._columns, cells, strict=False))
        return _of_mapping({k: float(v) for k, v in values.items() if _is_number(v)})

    def _epoch_of(self, line: str, metrics: dict[str, float]) -> float | None:
        """Return the epoch that a line names; alone on its line, it applies to later lines."""
        own = metrics.pop("epoch", None)
        match = EPOCH.search(line)
        if own is None and match is not None:
            own = float(match.group(1))
        if own is not None and not metrics:
            self._epoch = own
        return own


class LineReader:
    """Whole lines that were appended to a file since the last call.

    A file that has become shorter was written again, and is read from its beginning.

    Args:
        skip: whether to ignore lines that already exist.
    """

    def __init__(self, path: Path, *, skip: bool = False) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        if skip:
            try:
                self._at = path.stat().st_size
            except OSError:
                self._at = 0

    def lines(self, *, last: bool = False) -> Iterator[str]:
        """Return new lines; with `last` also an unterminated one."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._at:
                    self._at, self._rest = 0, b""
                file.seek(self._at)
                added = file.read()
        except OSError:
            added = b""
        self._at += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        if last and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        for line in whole:
            yield line.decode(errors="replace")


def _of_mapping(data: Mapping[str, Any]) -> MetricReport:
    metrics = {
        str(name): float(value)
        for name, value in data.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    epoch = metrics.pop("epoch", None)
    return MetricReport(metrics, epoch, str(data.get(EVENT, "")), bool(data.get(WAITS)))


def _json(line: str) -> Mapping[str, Any] | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, Mapping) else None


def _is_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) or text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


class MetricStream:
    """Reports of a program since the last call.

    Args:
        reports: the file that `current_trial()` writes.
        metrics_file: that the program writes of its own.
    """

    def __init__(self, wanted: str, reports: Path, output: Path, metrics_file: Path | None) -> None:
        self._sources = [
            (LineReader(reports), MetricLines(wanted), True),
            (LineReader(output, skip=True), MetricLines(wanted), False),
        ]
        if metrics_file is not None:
            reader = LineReader(metrics_file, skip=True)
            self._sources.append((reader, MetricLines(wanted), True))
        self._unread: Iterator[MetricReport] = iter(())
        self.cooperates = False
        """True when it reports through `current_trial()`; its output is then not parsed."""

    def new_reports(self, *, last: bool) -> Iterator[MetricReport]:
        """Yield reports in order; those not consumed now come first at the next call."""
        yield from self._unread
        found: list[MetricReport] = []
        for reader, lines, is_file in self._sources:
            for line in reader.lines(last=last):
                report = lines.row(line) if is_file else lines.parse(line)
                if report is not None and (is_file or not self.cooperates):
                    found.append(report)
                    self.cooperates = self.cooperates or bool(report.event)
        self._unread = iter(found)
        yield from self._unread


MACRO = re.compile(r"\$\{(args\w*)\}")
PREFIX = "WATTLOOP_PARAM_"
WHOLE_VARIABLE = "WATTLOOP_PARAMS"


def command_words(
    command: Sequence[str],
    parameters: Mapping[str, Value],
    *,
    inactive: Iterable[str] = (),
    folder: Path,
) -> list[str]:
    """Return program and arguments with placeholders filled in.

    `{name}` becomes the parameter's value; an argument with a parameter that this configuration
    does not have is left out. `${args}` becomes `--name=value` arguments; its variants are those of
    W&B.

    `inactive`: parameters that this configuration does not have.
    `folder`: for the file of `${args_json_file}`.
    """
    given = {name: value for name, value in parameters.items() if not name.startswith("wattloop.")}
    absent = [f"{{{name}}}" for name in inactive]
    words: list[str] = []
    for word in command:
        if any(placeholder in word for placeholder in absent):
            continue
        macro = MACRO.fullmatch(word)
        if macro is not None:
            words += _macro(macro.group(1), given, folder)
            continue
        filled = word
        for name, value in parameters.items():
            filled = filled.replace(f"{{{name.removeprefix('wattloop.')}}}", _text(value))
        words.append(MACRO.sub(lambda m: " ".join(_macro(m.group(1), given, folder)), filled))
    return words


def parameter_variables(parameters: Mapping[str, Value]) -> dict[str, str]:
    """Return `WATTLOOP_PARAM_BATCH_SIZE` and the like, and all as JSON in `WATTLOOP_PARAMS`."""
    variables = {
        PREFIX + re.sub(r"\W", "_", name).upper(): _text(value)
        for name, value in parameters.items()
    }
    return {**variables, WHOLE_VARIABLE: json.dumps(dict(parameters))}


def _macro(name: str, parameters: Mapping[str, Value], folder: Path) -> list[str]:
    if name == "args_no_hyphens":
        return [f"{key}={_text(value)}" for key, value in parameters.items()]
    if name == "args_json":
        return [json.dumps(dict(parameters))]
    if name == "args_json_file":
        path = folder / "parameters.json"
        path.write_text(json.dumps(dict(parameters)))
        return [str(path)]
    if name == "args_no_boolean_flags":
        flags = [f"--{key}" for key, value in parameters.items() if value is True]
        others = {k: v for k, v in parameters.items() if not isinstance(v, bool)}
        return [*(f"--{key}={_text(value)}" for key, value in others.items()), *flags]
    return [f"--{key}={_text(value)}" for key, value in parameters.items()]


def _text(value: Value) -> str:
    return repr(value) if isinstance(value, float) else str(value)


LOOK_EVERY_S = 0.02
TAIL_LINES = 4
DROP_GRACE_S = 5.0
SIGNALS = 128


class CommandTraining:
    """A program, paused between segments. `metrics_file` is added to its output."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        curve: TrainingCurve,
        files: CandidateFiles,
        *,
        checkpoint: bool,
        grace_s: float,
        metrics_file: str | None,
        resumed: bool,
    ) -> None:
        self.curve = curve
        self._command, self._environment, self._files = list(command), environment, files
        self._checkpoint, self._grace_s, self._resumed = checkpoint, grace_s, resumed
        self._program: ProcessGroup | None = None
        self._output = files.folder / "output.log"
        self._reports = files.folder / "reports.jsonl"
        self._metrics_file = None if metrics_file is None else Path(user_path(metrics_file))
        self._steps = CapSteps()
        files.make()
        self._connect()
        self._waiting = False
        """True while the paused program waits for a message on its channel; otherwise it is stopped
        (SIGSTOP).
        """
        self._starts_again = False
        """True when it ended without a checkpoint and starts again."""

    def advance(
        self,
        segment: Segment,
        meter: SegmentMeter,
        past: TrainedSoFar,
        steps: CapSteps,
        most_s: float | None,
    ) -> SegmentEnd:
        if self._starts_again:
            self._starts_again = False
            self.curve = TrainingCurve(self.curve.wanted, best=self.curve.best)
        begun = self._program is not None
        bounds = SegmentProgress(
            segment, meter, self.curve, None if begun else epochs_behind(self.curve, past)
        )
        self._steps = steps
        program = self._resume(meter)
        over_s = None if most_s is None else meter.now_s() + most_s
        while True:
            ended = program.has_ended()
            for report in self._stream.new_reports(last=ended):
                status = self._handle(report, meter, bounds)
                if status is not None:
                    self._waiting = report.waits
                    return self._paused(program, status, bounds.over())
                if report.waits:
                    self._channel.resume()
            if ended:
                self.curve.finish(meter.now_s())
                silent = self.curve.silent(meter.begin_s, meter.now_s())
                return self._own_end(program, bounds.over(), self.curve.missed or silent)
            if bounds.between_steps() and self._may_be_stopped(bounds):
                return self._paused(program, Status.PAUSED, bounds.over())
            if over_s is not None and meter.now_s() > over_s:
                program.stop(DROP_GRACE_S)
                message = f"the segment did not end within {most_s:g} s"
                return SegmentEnd(status=Status.TIMEOUT, message=message, from_s=bounds.over())
            self._channel.wait(LOOK_EVERY_S)

    def drop(self) -> None:
        """End the program and all its child processes."""
        program = self._program
        if program is not None:
            if self._waiting:  # it can clean up
                self._channel.stop()
                program.wait(DROP_GRACE_S)
            program.stop(DROP_GRACE_S)
        self._channel.close()

    def _connect(self) -> None:
        self._channel = PauseChannel(self._reports)
        wanted = self.curve.wanted.metric
        self._stream = MetricStream(wanted, self._reports, self._output, self._metrics_file)

    def _resume(self, meter: SegmentMeter) -> ProcessGroup:
        waiting, self._waiting = self._waiting, False
        if self._program is not None:
            if waiting:
                self._channel.resume()
            else:
                self._program.send(signal.SIGCONT)
            return self._program
        self._reports.unlink(missing_ok=True)
        self._channel.close()
        self._connect()
        variables = {
            **child_environment(meter.session),
            **self._environment,
            "WATTLOOP_TRIAL_DIR": str(self._files.folder),
            "WATTLOOP_CHECKPOINT": str(self._files.checkpoint),
            "WATTLOOP_RESUMED": str(int(self._resumed)),
            "WATTLOOP_EPOCHS_DONE": f"{self.curve.epochs:g}",
            "WATTLOOP_REPORTS": str(self._reports),
        }
        with stops_deferred():
            self._program = ProcessGroup(self._command, variables, output=self._output, append=True)
        return self._program

    def _handle(
        self, report: MetricReport, meter: SegmentMeter, bounds: SegmentProgress
    ) -> Status | None:
        if report.event == "paused":
            return Status.PAUSED if bounds.between_steps() else None
        if not self._record(report, meter.now_s()):
            return None
        self._files.note(self.curve.epochs)
        self._steps.epoch()
        return bounds.at_end_of_epoch()

    def _may_be_stopped(self, bounds: SegmentProgress) -> bool:
        """Return whether SIGSTOP is safe; a program that reports its steps is asked to wait."""
        if not self._stream.cooperates or bounds.long_over(DROP_GRACE_S):
            return True
        self._channel.ask_to_pause()
        return False

    def _record(self, report: MetricReport, at_s: float) -> bool:
        if report.event in ("begins", "counts"):
            self.curve.counted = self.curve.counted or report.event == "counts"
            return False
        if report.event == "epoch":
            self.curve.end_epoch(at_s)
            return True
        if report.event == "steps":
            units = report.metrics.get("steps", 0.0)
            self.curve.steps += units
            self.curve.steps_each = report.metrics.get("each", self.curve.steps_each)
            if units:
                self._steps.step(units)
            return False
        return self.curve.report(report.metrics, report.epoch, at_s)

    def _paused(self, program: ProcessGroup, status: Status, from_s: float) -> SegmentEnd:
        if status is Status.DIVERGED:
            program.stop(DROP_GRACE_S)
            return SegmentEnd(status=status, message=self.curve.diverged, from_s=from_s)
        warnings = [self.curve.missed] if self.curve.missed else []
        if self._checkpoint:
            warnings += self._saved(program)
        elif not self._waiting:
            program.send(signal.SIGSTOP)
            if status is Status.PAUSED and program.has_ended():
                status = Status.ENDED
        return SegmentEnd(status=status, from_s=from_s, warnings=tuple(warnings))

    def _saved(self, program: ProcessGroup) -> list[str]:
        in_time = program.stop(self._grace_s)
        self._files.note(self.curve.epochs)
        self._program, self._waiting = None, False
        self._resumed = self._files.saved_epochs is not None
        if self._resumed:
            return [] if in_time else [f"it did not end within {self._grace_s:g} s"]
        self._starts_again = True
        return [
            f"it saved nothing in {self._files.checkpoint}, so it must start again; save "
            "there when SIGTERM comes, or leave out 'checkpoint: true'"
        ]

    def _own_end(self, program: ProcessGroup, from_s: float, warning: str) -> SegmentEnd:
        code = program.exit_code or 0
        report = " | ".join(last_lines(self._output, TAIL_LINES))
        tail = f"; it said: {report}" if report else ""
        if self.curve.diverged:
            return SegmentEnd(status=Status.DIVERGED, message=self.curve.diverged, from_s=from_s)
        if code > SIGNALS:
            status = classify_output(report)
            if status is Status.FAILED:
                status = Status.KILLED
            message = f"ended by signal {code - SIGNALS}{tail}"
            return SegmentEnd(status=status, message=message, from_s=from_s)
        if code:
            message = f"exit code {code}{tail}"
            return SegmentEnd(status=classify_output(report), message=message, from_s=from_s)
        if self.curve.wanted.metric and not self.curve.seen:
            return SegmentEnd(status=Status.NO_METRIC, message=self._never(report), from_s=from_s)
        return SegmentEnd(
            status=Status.ENDED, from_s=from_s, warnings=(warning,) if warning else ()
        )

    def _never(self, report: str) -> str:
        wanted = self.curve.wanted.metric
        others = ", ".join(self.curve.metrics)
        return (
            f"the command ended without reporting '{wanted}'"
            + (f", only {others}" if others else "")
            + f"; print a line such as '{wanted}=0.93' after each epoch, or write it to a file and "
            f"name that as metrics_file" + (f". It said: {report}" if report else "")
        )


class CommandExecutor(ReportingExecutor):
    """Runs a command for each candidate.

    Args:
        command: program and arguments, with placeholders (`command_words`).
        search_id: is told to the program, with the candidate, in `WATTLOOP_TRIAL`.
        variables: of its programs, so that those of a killed search are found
            (`trials.lock.program_variables`).
        checkpoint: whether the program saves its state when it is asked to end (SIGTERM) and
            resumes from `WATTLOOP_CHECKPOINT`; otherwise it is stopped (SIGSTOP) and keeps its
            memory.
        metrics_file: that the program writes, in addition to its output; may contain `{trial_dir}`
            and parameters.
        grace_s: how long it may take to save its state.

    Raises:
        CommandError: the program does not exist.
    """

    in_process = False
    what = "a command"

    def __init__(
        self,
        command: Sequence[str],
        problem: Problem,
        settings: Settings,
        *,
        search_id: str = "search",
        variables: Mapping[str, str] | None = None,
        checkpoint: bool = False,
        metrics_file: str | None = None,
        grace_s: float = 30.0,
        **options: Any,
    ) -> None:
        super().__init__(problem, settings, **options)
        if "{" not in command[0]:
            find_program(command[0])
        self.command = list(command)
        self._search_id, self._variables = search_id, dict(variables or {})
        self._checkpoint, self._grace_s = checkpoint, grace_s
        self._metrics_file = metrics_file

    def _begin(
        self, segment: Segment, curve: TrainingCurve, files: CandidateFiles, *, resumed: bool
    ) -> CommandTraining:
        files.make()
        levers = {f"wattloop.{name}": value for name, value in segment.levers.items()}
        named: dict[str, Value] = {
            **segment.parameters,
            **levers,
            "wattloop.trial_dir": str(files.folder),
            "wattloop.checkpoint": str(files.checkpoint),
            "wattloop.seed": segment.seed,
        }
        given = {*segment.parameters, *segment.levers}
        inactive = [n for n in self._problem.space.parameters if n not in given]
        words = command_words(self.command or [], named, inactive=inactive, folder=files.folder)
        metrics = None
        if self._metrics_file is not None:
            metrics = command_words([self._metrics_file], named, folder=files.folder)[0]
        variables = {
            **parameter_variables(segment.parameters),
            **self._variables,
            TRIAL_VARIABLE: f"{self._search_id}/{segment.candidate}",
            "WATTLOOP_SEED": str(segment.seed),
            "PYTHONUNBUFFERED": "1",
        }
        count = segment.levers.get(GPUS)
        if isinstance(count, int | float):
            variables |= gpu_variables(int(count))
        return CommandTraining(
            words,
            variables,
            curve,
            files,
            checkpoint=self._checkpoint,
            grace_s=self._grace_s,
            metrics_file=metrics,
            resumed=resumed,
        )
