"""Magic `%%wattloop`: the energy of a cell, with its training steps, in Jupyter and IPython.

%load_ext wattloop

%%wattloop -n training
train(model)
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.results import RunStatus, WindowResult, result_html
from wattloop.integrations.run_phases import StepTotals, format_totals
from wattloop.integrations.step_hook.program import STEPS_VARIABLE, StepHook
from wattloop.integrations.step_hook.sitecustomize import WATCHED, ImportWatcher
from wattloop.measure.api import Measurement, active_session, format_result

USAGE = "%%wattloop [-n NAME] [-o VARIABLE] [-q] [--no-steps]"


class CellEnergy(NamedTuple):
    """Energy of a cell: its result, the steps it made, and the run in the store.

    `run_id` is None for a cell inside of a measurement that goes on.
    """

    result: WindowResult
    totals: StepTotals | None = None
    run_id: str | None = None

    @property
    def energy_j(self) -> float | None:
        return self.result.energy_j

    def __repr__(self) -> str:
        return "\n".join([f"{self.result.name}: {format_result(self.result)}", *self._lines()])

    def _repr_html_(self) -> str:
        return result_html(self.result, self._lines())

    def _lines(self) -> list[str]:
        steps = [] if self.totals is None else format_totals(self.totals)
        return [*steps, f"run {self.run_id}"] if self.run_id else steps


class _Options(NamedTuple):
    name: str = ""
    variable: str = ""
    quiet: bool = False
    steps: bool = True
    statement: str = ""


def register_magic(shell: Any) -> None:
    """Add `%wattloop` and `%%wattloop` to an IPython shell."""
    steps = KernelSteps()

    def wattloop(line: str, cell: str | None = None) -> None:
        from IPython.core.error import UsageError

        try:
            options = parse_options(line, has_cell=cell is not None)
        except ConfigError as error:
            raise UsageError(str(error)) from None  # IPython shows it without a traceback
        code = options.statement if cell is None else cell
        if _awaits(shell, code):
            raise UsageError(
                "%%wattloop cannot run a cell with a top-level await inside of the notebook's "
                "event loop; write 'with wattloop.measure(\"cell\"):' around the code instead"
            )
        measure_cell(shell, code, options, steps if options.steps else None)

    wattloop.__doc__ = f"""Measure the energy of a cell, or of a statement.

    {USAGE}
    %wattloop [OPTIONS] STATEMENT

    -n NAME       what the run is called in the store
    -o VARIABLE   keep the result in this variable
    -q            show nothing
    --no-steps    do not look for training steps
    """
    from IPython.core.magic import no_var_expand

    # Without this IPython would replace `{x}` in a statement by the value of x.
    shell.register_magic_function(no_var_expand(wattloop), "line_cell", "wattloop")


def _awaits(shell: Any, code: str) -> bool:
    """Return whether the cell awaits something while an event loop runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return bool(shell.should_run_async(code, transformed_cell=shell.transform_cell(code)))


def parse_options(line: str, *, has_cell: bool) -> _Options:
    """Return the options of the magic's line.

    Raises:
        ConfigError: an option is unknown or has no value, or there is nothing to measure.
    """
    found: dict[str, Any] = {}
    rest = line.strip()
    while rest.startswith("-"):
        word, _, rest = rest.partition(" ")
        rest = rest.strip()
        if word in ("-n", "--name", "-o", "--output"):
            try:
                value = shlex.split(rest)[0]
            except (IndexError, ValueError):
                raise ConfigError(f"{word}: give a value, as in {USAGE}") from None
            quoted = rest[:1] in "\"'"
            rest = rest[len(value) + 2 * quoted :].strip()
            found["name" if "n" in word[:3] else "variable"] = value
        elif word in ("-q", "--quiet"):
            found["quiet"] = True
        elif word == "--no-steps":
            found["steps"] = False
        else:
            raise ConfigError(f"{word}: unknown; write {USAGE}")
    if has_cell and rest:
        raise ConfigError(f"{rest}: the code to measure comes below {USAGE}")
    if not has_cell and not rest:
        raise ConfigError(f"nothing to measure: write %wattloop STATEMENT, or {USAGE} and a cell")
    variable = found.get("variable", "")
    if variable and not variable.isidentifier():
        raise ConfigError(f"-o {variable}: not the name of a variable")
    return _Options(**found, statement=rest)


def measure_cell(shell: Any, code: str, options: _Options, steps: KernelSteps | None) -> CellEnergy:
    """Run `code` in the shell, show its energy, and raise what it raised."""
    measurement = Measurement(options.name or "cell", {})
    whole_run = active_session() is None
    measurement.begin()
    # a cell inside of a run that goes on is a window: its steps belong to that run
    hook = steps.begin() if steps is not None and whole_run else None
    try:
        done = _run_quietly(shell, code)
    except BaseException:
        _end(measurement, hook, RunStatus.FAILED)
        raise
    _end(measurement, hook, RunStatus.FINISHED if done.success else RunStatus.FAILED)
    run = measurement.run
    energy = CellEnergy(
        measurement.result,
        None if hook is None else hook.totals,
        None if run is None else run.run_id,
    )
    if options.variable:
        shell.user_ns[options.variable] = energy
    if not options.quiet:
        from IPython.display import display

        display(energy)
    done.raise_error()
    return energy


def _run_quietly(shell: Any, code: str) -> Any:
    """Run a cell without showing its exception, which is raised later: it is shown once."""
    shown = {name: getattr(shell, name) for name in ("showtraceback", "showsyntaxerror")}
    noted: list[BaseException | None] = []
    for name in shown:
        setattr(shell, name, lambda *_, **__: noted.append(sys.exc_info()[1]))
    try:
        done = shell.run_cell(code, store_history=False)
    finally:
        for name, original in shown.items():
            setattr(shell, name, original)
    for error in noted:  # what the cell itself has shown, such as the exception of a `%run`
        if error is not None and error not in (done.error_in_exec, done.error_before_exec):
            shell.showtraceback((type(error), error, error.__traceback__))
    return done


def _end(measurement: Measurement, hook: CellHook | None, status: RunStatus) -> None:
    if hook is not None:
        hook.end()
    measurement.end(status)


class KernelSteps:
    """Hooks of `wattloop run` in this process, which record while a measured cell runs.

    They are installed by the first measured cell. A kernel under `wattloop run` has them already,
    and its steps belong to that run.
    """

    def __init__(self) -> None:
        self._watcher: Any = None

    def begin(self) -> CellHook | None:
        """Record steps of the run that is open; None where another run records them."""
        session = active_session()
        if session is None or os.environ.get(STEPS_VARIABLE):
            return None
        if self._watcher is None:
            self._install()
        hook = StepHook()
        folder = hook.begin(session, {}).get(STEPS_VARIABLE)
        return None if folder is None else CellHook(hook, folder)

    def _install(self) -> None:
        folder = str(Path(__file__).parent / "step_hook")
        self._watcher = ImportWatcher(folder)
        sys.meta_path.insert(0, self._watcher)
        for name in WATCHED:
            if name in sys.modules:
                self._watcher.install_now(name)


class CellHook:
    """Steps of one cell, written to `folder`."""

    def __init__(self, hook: StepHook, folder: str) -> None:
        self._hook = hook
        # a framework that the cell imports finds the folder here
        os.environ[STEPS_VARIABLE] = folder
        _record_to(folder)

    @property
    def totals(self) -> StepTotals | None:
        """Steps and phases, after the run has ended."""
        return self._hook.totals

    def end(self) -> None:
        """Write what is left; the end of the run adds up the steps."""
        os.environ.pop(STEPS_VARIABLE, None)
        _record_to("")


def _record_to(folder: str) -> None:
    module = sys.modules.get("_wattloop_hook.step_hook.program_steps")
    if module is not None:
        module.ProgramSteps.shared().record_to(folder)
