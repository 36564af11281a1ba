"""Search for the best power cap inside a segment, in ordinary steps of its training."""

from typing import TYPE_CHECKING

from wattloop.cap.online import OnlineRules, OnlineState
from wattloop.core.errors import WattloopError
from wattloop.core.settings import Settings
from wattloop.tune.levers import LeverBoard
from wattloop.tune.segment import CapFound, CapRequest

if TYPE_CHECKING:
    from wattloop.measure.session import Session


FEWEST_PROBES = 2
"""With fewer probes, only the highest cap is known."""


class CapSteps:
    """Receiver of the steps of a training. This one searches no cap, for the reason given."""

    def __init__(self, reason: str = "") -> None:
        self._reason = reason

    def step(self, units: float) -> None:
        """Record the end of a step; called often, so it must be cheap."""

    def epoch(self) -> None:
        """Record the end of an epoch; an evaluation may follow."""

    def found(self) -> CapFound | None:
        """End the search for a cap and return its result."""
        return CapFound(cap_w=None, reason=self._reason) if self._reason else None


class CapWatch(CapSteps):
    """Search for a cap while a segment runs; the training keeps that cap until the segment ends.

    Where the training reports no steps, its epochs count as steps.

    Raises:
        WattloopError: no cap may be set here, or the GPUs' energy is not read.
    """

    def __init__(
        self,
        search: CapRequest,
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
        self._stepped = True
        self._tuner.step(units)

    def epoch(self) -> None:
        """Mark an interruption where there are steps; count as a step where there are none."""
        if self._stepped:
            self._tuner.interrupt()
        else:
            self._tuner.step()

    def found(self) -> CapFound:
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
        gain, loss = choice.energy_gain_pct, choice.time_loss_pct
        return CapFound(
            cap_w=choice.cap_w,
            energy_ratio=1 - gain.value / 100,
            time_ratio=1 + loss.value / 100,
            probes=tuple((p.cap_w, p.time_s, p.energy_j) for p in probes),
            uncertainty=max(gain.high - gain.low, loss.high - loss.low) / 200,
            reason=fault,
        )


def start_cap_search(
    search: CapRequest | None,
    board: LeverBoard,
    session: "Session",
    settings: Settings,
    rules: OnlineRules | None,
) -> CapSteps:
    """Return a cap search, or none with the reason where no cap is wanted or none may be set."""
    if search is None:
        return CapSteps()
    try:
        return CapWatch(search, board, session, settings, rules)
    except WattloopError as error:
        return CapSteps(str(error))
