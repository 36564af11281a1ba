"""The best power cap, found inside a segment in ordinary steps of its training."""

from typing import TYPE_CHECKING, Protocol

from wattloop.cap.online import OnlineRules, OnlineState
from wattloop.core.errors import WattloopError
from wattloop.core.settings import Settings
from wattloop.tune.levers import LeverBoard
from wattloop.tune.progress import CapFound
from wattloop.tune.segment import CapSearch

if TYPE_CHECKING:
    from wattloop.cap.finder import CapChoice
    from wattloop.measure.session import Session


FEWEST_PROBES = 2


"""With fewer nothing is known of any cap but the highest."""


class CapSteps(Protocol):
    """Told of the progress of a training."""

    def step(self, units: float) -> None:
        """A step has ended; called often, and cheap."""

    def epoch(self) -> None:
        """An epoch has ended: what follows may be an evaluation."""

    def found(self) -> CapFound | None:
        """The segment is over: what was found."""


class NoCap:
    """Nobody looks for a cap, or none can be set, for the reason given."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason

    def step(self, units: float) -> None:
        """Not needed."""

    def epoch(self) -> None:
        """Not needed."""

    def found(self) -> CapFound | None:
        """Why there is none, where one was asked for."""
        return CapFound(cap_w=None, reason=self._reason) if self._reason else None


class CapWatch:
    """Looks for a cap while a segment runs, and stays at it until the segment ends.

    Where the training tells of no steps, its epochs are the steps.

    Args:
        search: what to be best at.
        board: that sets the levers.
        session: that measures the GPUs.
        settings: which devices there are.
        rules: how long probes last.

    Raises:
        WattloopError: no cap may be set here, or the GPUs' energy is not read.
    """

    def __init__(
        self,
        search: CapSearch,
        board: LeverBoard,
        session: "Session",
        settings: Settings,
        rules: OnlineRules | None = None,
    ) -> None:
        from wattloop.cap.callback import CapTuner  # few searches look for a cap

        plan = board.cap_plan(search)
        self._stepped = False
        self._tuner = CapTuner(
            search.metric,
            search.k,
            gpus=",".join(name.removeprefix("gpu:") for name in plan.devices),
            caps=",".join(f"{cap_w:g}" for cap_w in plan.caps_w),
            rules=rules,
            settings=settings,
            longest_s=search.longest_s,
            session=session,
            held=board.held,
        ).begin_or_raise()

    def step(self, units: float) -> None:
        """As cheap as noting the time."""
        self._stepped = True
        self._tuner.step(units)

    def epoch(self) -> None:
        """An interruption where there are steps, a step where there are none."""
        if self._stepped:
            self._tuner.interrupt()
        else:
            self._tuner.step()

    def found(self) -> CapFound:
        """Put the caps back; the cap that was found."""
        choice = self._tuner.end()
        pilot = self._tuner.pilot
        finder = None if pilot is None else pilot.found_by or pilot.finder
        probes = () if finder is None else finder.probes
        fault = self._tuner.fault or ""
        if choice is None or (choice.unfinished and len(probes) < FEWEST_PROBES):
            over = pilot is not None and pilot.state is OnlineState.LEFT
            reason = fault or (
                "no cap was found in the time allowed"
                if over
                else f"the segment ended after {len(probes)} probe{'s' * (len(probes) != 1)}"
            )
            return CapFound(cap_w=None, reason=reason, too_short=not (fault or over))
        return CapFound(
            cap_w=choice.cap_w,
            energy_ratio=1 - choice.energy_gain_pct.value / 100,
            time_ratio=1 + choice.time_loss_pct.value / 100,
            probes=tuple((p.cap_w, p.time_s, p.energy_j) for p in probes),
            uncertainty=_half_width(choice),
            reason=fault,
        )


def watch_for(
    search: CapSearch | None,
    board: LeverBoard,
    session: "Session",
    settings: Settings,
    rules: OnlineRules | None,
) -> CapSteps:
    """A watch, or nothing where no cap is wanted or none may be set: the training goes on."""
    if search is None:
        return NoCap()
    try:
        return CapWatch(search, board, session, settings, rules)
    except WattloopError as error:
        return NoCap(str(error))


def _half_width(choice: "CapChoice") -> float:
    gain, loss = choice.energy_gain_pct, choice.time_loss_pct
    return max(gain.high - gain.low, loss.high - loss.low) / 200
