"""`CapTuner`: the best power cap, found inside a training of any framework."""

import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from wattloop.cap.curve_model import physical_curves
from wattloop.cap.finder import CapChoice, CapFinder
from wattloop.cap.gpus import CapPlan, cap_plan, devices_energy, energy_provenance, job_gpus
from wattloop.cap.online import OnlineCapFinder, OnlineRules, OnlineState, ProgressStep
from wattloop.control.registry import find_levers
from wattloop.control.session import LeverSession, lever_session
from wattloop.core.clock import Clock, RealClock
from wattloop.core.settings import Settings, load_settings
from wattloop.measure.api import active_session
from wattloop.measure.session import Session

if TYPE_CHECKING:
    from wattloop.integrations.training_meter import TrainingMeter


def follow(
    meter: "TrainingMeter",
    *,
    begin: Callable[[], object],
    step: Callable[[], object],
    interrupt: Callable[[], object],
    end: Callable[[], object],
) -> None:
    """Call these in addition to the meter's own: after its begin and steps, before its end."""

    def joined(
        method: Callable[..., Any], own: Callable[[], object], *, first: bool = False
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if first:
                own()
            result = method(*args, **kwargs)
            if not first:
                own()
            return result

        return call

    stepped = joined(meter.step_end, step)
    # On the one object: frameworks call the methods of the meter they were given.
    for name, method in (
        ("begin", joined(meter.begin, begin)),
        ("step_end", stepped),
        ("step_done", stepped),
        ("interrupt", joined(meter.interrupt, interrupt)),
        ("end", joined(meter.end, end, first=True)),
    ):
        setattr(meter, name, method)


# with CapTuner(metric="eds", k=2) as tuner:
#     for batch in loader:
#         train(batch)
#         tuner.step()
# print(tuner.choice)
#
# `step` only notes the time. A background thread measures, sets caps and decides; the probes are
# ordinary steps of the training. Caps are restored at the end, on any exception, and after a kill.

LOOK_EVERY_S = 0.1
WATCH_EVERY_S = 2.0
MOST_STEPS = 100_000
"""Steps that wait for the thread; far more than a training takes between two looks."""
_log = logging.getLogger("wattloop")


class CapTuner:
    """Finds and keeps the best cap for the GPUs of a running training.

    A wrong option raises `ConfigError` at once. After that nothing here raises into the loop: when
    anything fails it says so, puts the caps back, and the training goes on.

    In a job of several processes only the first of each machine does anything.

    Args:
        metric, k: what to be best at, as `CapFinder` takes them.
        gpus: such as `0,1`; unless given those of CUDA_VISIBLE_DEVICES where it is set, else all.
        caps: such as `100:250:25`; unless given round numbers up to the present limit.
        rules: how long probes last and when work counts as changed.
        most_probes: of each search, never more, the reference included; as `CapFinder` has it.
        report: told what happens; the `wattloop` log unless given.
        probed: called with the finder after every probe.
        apply: whether to stay at the best cap until the end.
        settings: how to measure; from environment and file unless given.
        finder: probes that are known already, for the first search.
        longest_s: give up when no cap was found after this long; a search that only probes on for
            noise takes the best so far.
        session: that measures the GPUs; the program's own, or one more, unless given.
        held: that has the power limits; then they are put back in the end, and stay held.
    """

    def __init__(  # noqa: PLR0913 - options of one line in the user's program, all with defaults
        self,
        metric: str = "eds",
        k: float = 2.0,
        *,
        gpus: str | None = None,
        caps: str | None = None,
        rules: OnlineRules | None = None,
        most_probes: int | None = None,
        report: Callable[[str], None] | None = None,
        probed: Callable[[CapFinder], None] = lambda finder: None,
        apply: bool = True,
        settings: Settings | None = None,
        clock: Clock | None = None,
        finder: CapFinder | None = None,
        longest_s: float | None = None,
        session: Session | None = None,
        held: LeverSession | None = None,
    ) -> None:
        CapFinder([1.0, 2.0], metric, k, most_probes=most_probes)  # refuses wrong options
        self._options: dict[str, Any] = {"metric": metric, "k": k, "most_probes": most_probes}
        self._gpus, self._caps, self._first = gpus, caps, finder
        self._rules = rules or OnlineRules()
        self._report = report or functools.partial(_log.info, "cap: %s")
        self._probed, self._apply, self._settings = probed, apply, settings
        self._now_s = (clock or RealClock()).now_s
        self._steps: deque[ProgressStep] = deque(maxlen=MOST_STEPS)
        self._stop = threading.Event()
        self._stack = ExitStack()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._session, self._hold = session, held
        self._given_session, self._given_hold = session, held
        self._longest_s, self._begin_s = longest_s, 0.0
        self.provenance = ""
        """Where the joules come from: `measured`, or `simulated` on the virtual GPU."""
        self.pilot: OnlineCapFinder | None = None
        self.fault: str | None = None
        """Why nothing is tuned, or not any more."""

    # -- in the loop -----------------------------------------------------------------------

    def step(self, units: float = 1.0) -> None:
        """A step has ended, with `units` of progress; one without any is an interruption."""
        self._steps.append(ProgressStep(self._now_s(), units if units > 0 else None))

    def interrupt(self) -> None:
        """Mark what follows as not a step: evaluation, a checkpoint. Long gaps need no mark."""
        self._steps.append(ProgressStep(self._now_s(), None))

    def attach(self, meter: "TrainingMeter") -> Self:
        """Take steps, interruptions and the end from the meter of a framework's callback."""
        follow(meter, begin=self.begin, step=self.step, interrupt=self.interrupt, end=self.end)
        return self.begin() if meter.session is not None else self

    # -- beginning and end -----------------------------------------------------------------

    def begin(self) -> Self:
        """Lock the GPUs and begin the search; `fault` says why where that is not possible."""
        if os.environ.get("LOCAL_RANK", "0") not in ("", "0"):
            self.fault = "another process of this job sets the caps of this machine"
        elif self.fault is None:
            try:
                self.begin_or_raise()
            except Exception as error:  # noqa: BLE001 - the training matters more than its caps
                self._give_up(error)
        return self

    def begin_or_raise(self) -> Self:
        """As `begin`, for programs that have nothing to do without."""
        if self._thread is None:
            self._stop.clear()
            self._steps.clear()
            self._pid = os.getpid()
            try:
                self._open()
            except BaseException:
                self._close()
                raise
        return self

    def end(self) -> CapChoice | None:
        """Restore everything; return the cap found, `unfinished` if the search was not over."""
        if os.getpid() != self._pid:  # a fork that loads data: locks may be held for ever here
            return self.choice
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._close()
        if thread is not None and self.pilot is not None:
            self.pilot.work_ended(self.fault)
        return self.choice

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def choice(self) -> CapChoice | None:
        """The cap that is used; None until the first search or the training has ended."""
        return None if self.pilot is None else self.pilot.choice

    @property
    def reason(self) -> str:
        """Why `choice` is None, or that of a search that did not end; else empty."""
        if self.fault is not None:
            return self.fault
        if self.pilot is None:
            return "it has not begun"
        if self.pilot.choice is None and not self.pilot.unfinished:
            return f"the search goes on, {len(self.pilot.finder.probes)} probes so far"
        return self.pilot.unfinished

    # -- inside ----------------------------------------------------------------------------

    def _open(self) -> None:
        settings = load_settings() if self._settings is None else self._settings
        levers = find_levers(settings=settings)
        gpus = self._gpus if self._gpus is not None else job_gpus(levers)
        plan = cap_plan(levers, gpus, self._caps, named="caps")
        session = self._given_session or active_session()
        if session is None:
            session = Session.open(settings, name="cap", keep=False)
            self._stack.callback(session.close)
        self._session = session
        self.provenance = energy_provenance(session, plan.devices)
        if self._given_hold is None:
            self._hold = self._stack.enter_context(lever_session(plan.levers, report=self._report))
        else:
            self._stack.callback(self._given_hold.restore, *(x.name for x in plan.levers))
        self.pilot = OnlineCapFinder(
            lambda: self._finder(plan),
            lambda cap_w: self._set(plan, cap_w),
            functools.partial(devices_energy, session, plan.devices),
            self._rules,
            report=self._report,
            probed=self._probed,
            apply=self._apply,
        )
        self._begin_s = self._now_s()
        self._thread = threading.Thread(target=self._work, name="wattloop-cap", daemon=True)
        self._thread.start()

    def _finder(self, plan: CapPlan) -> CapFinder:
        first, self._first = self._first, None
        if first is not None:
            return first
        return CapFinder(plan.caps_w, devices=len(plan.levers), **self._options)

    def _set(self, plan: CapPlan, cap_w: float | None) -> None:
        assert self._hold is not None
        if cap_w is None:
            self._hold.restore()
        else:
            self._hold.set(plan.settings(cap_w))

    def _work(self) -> None:
        try:
            physical_curves()  # takes some tenths of a second, once
            assert self.pilot is not None
            while not self._stop.wait(self._pause_s()):
                steps = [self._steps.popleft() for _ in range(len(self._steps))]
                self.pilot.advance(steps, self._now_s())
                self._give_up_in_time()
                if self.pilot.state is OnlineState.LEFT:
                    self._close()
                    return
        except Exception as error:  # noqa: BLE001 - see the class
            self._give_up(error)

    def _pause_s(self) -> float:
        assert self.pilot is not None
        if self.pilot.state is OnlineState.PROBING:
            return min(LOOK_EVERY_S, self._rules.least_s / 4)
        return min(WATCH_EVERY_S, self._rules.watch_s / 4)

    def _give_up_in_time(self) -> None:
        assert self.pilot is not None
        over = self._longest_s is not None and self._now_s() - self._begin_s > self._longest_s
        if over and self.pilot.state is OnlineState.PROBING and not self.pilot.searches:
            why = f"no cap was found within {self._longest_s:g} s"
            self.pilot.give_up(why, self._now_s())

    def _give_up(self, error: Exception) -> None:
        self.fault = str(error) or type(error).__name__
        _log.warning("the training goes on without a cap being looked for: %s", self.fault)
        self._close()

    def _close(self) -> None:
        try:
            self._stack.close()
        except Exception as error:  # noqa: BLE001 - see the class
            self.fault = f"{self.fault}; {error}" if self.fault else str(error)
            _log.warning("cap: %s", error)
