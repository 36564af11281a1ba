"""The whole run as a result, when its last readings are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wattloop.core.results import RunStatus, WindowResult
    from wattloop.measure.run_result import RunResult
    from wattloop.measure.session import Session
    from wattloop.measure.shared_node import SharedTime

__all__ = ["call_all", "run_result", "whole_run"]


def whole_run(
    session: Session, end_s: float, *, window_id: int, warnings: list[str]
) -> WindowResult:
    """Energy of the run; of what another process of the job has counted, only the rest."""
    from_s = max(session.started_s, min(session.role.counts_from_s, end_s))
    if from_s > session.started_s:
        counted_s = from_s - session.started_s
        warnings = [
            *warnings,
            f"another process of this job counted the first {counted_s:.1f} s; "
            "this run counts the rest",
        ]
    result = session.between(
        from_s, end_s, name=session.name, window_id=window_id, warnings=warnings
    )
    return result._replace(begin_s=session.started_s)


def run_result(
    session: Session,
    result: WindowResult,
    shared: SharedTime | None,
    status: RunStatus,
    exit_code: int | None,
    signal: int | None,
) -> RunResult:
    """With what the joules mean, as far as that can be said."""
    from wattloop.measure.run_result import RunResult

    facts: dict[str, Any] = {
        "run_id": session.run_id,
        "status": status,
        "exit_code": exit_code,
        "signal": signal,
        "started_wall_s": session.started_wall_s,
        "counted": session.role.counts,
        "nested": session.role.nested,
        "counted_by": session.role.counted_by,
        "left_out": session.left_out,
        "shared": shared,
    }
    if shared is not None:
        text = shared.text(result.energy_j)
        result = result._replace(warnings=(*result.warnings, text))
    settings = session.settings
    if session.shares is not None:
        part = session.shares.share("cpu", result.begin_s, result.end_s) or 0.0
        settings = settings._replace(node_share=settings.node_share * part)
    try:
        return RunResult.of(result, settings, machine_id=session.host.machine_id, **facts)
    except Exception as error:  # noqa: BLE001 - what joules mean must not cost us the joules
        text = f"not accounted for: {type(error).__name__}: {error}"
        return RunResult(result=result._replace(warnings=(*result.warnings, text)), **facts)


def call_all(listeners: Iterable[Callable[[], None]], note: Callable[[str], None]) -> None:
    """Tell those who wait for the end; what fails there is a note."""
    for listener in list(listeners):
        try:
            listener()
        except Exception as error:  # noqa: BLE001 - a listener must not cost the run its end
            note(f"{type(error).__name__} while the run ended: {error}")
