"""Result of a run, as shown to users and written to files."""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wattloop.core.errors import WattloopError
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.measure.concurrent_runs import SharedTime
from wattloop.meters.visible_gpus import HiddenGpus


class RunResult(NamedTuple):
    """Energy of a run, its accounting, and whether this run counts the devices.

    A process that shares its node with others of the same job does not count what another one
    already counts: then `counted` is False and `counted_by` names that run. A rank among others
    then reports no energy of its own; a run nested in another (`nested`) does, as a part of it.
    """

    run_id: str
    status: RunStatus
    exit_code: int | None
    signal: int | None
    started_wall_s: float
    result: WindowResult
    accounting: Mapping[str, Any] = MappingProxyType({})
    summary: str = ""
    counted: bool = True
    counted_by: str | None = None
    nested: bool = False
    left_out: tuple[HiddenGpus, ...] = ()
    """GPUs of the machine that the environment hides from the program: excluded from all numbers of
    the run."""
    shared: SharedTime | None = None
    """Time in which other runs counted the same devices."""
    saving: Mapping[str, Any] | None = None
    """What `wattloop run --save` saved, and how that is known."""

    def accounted(self, settings: Settings, machine_id: str) -> "RunResult":
        """Return a copy with its accounting: idle energy, carbon, cost and labels."""
        from wattloop.accounting.summary import account

        if settings.share == "process":
            lines, idle_note = None, "the idle line is that of the whole machine"
        else:
            lines, idle_note = _idle(settings, machine_id, self.started_wall_s)
        accounting = account(
            self.result,
            settings,
            idle_lines=lines,
            idle_note=idle_note,
            started_wall_s=self.started_wall_s,
        )
        return self._replace(accounting=accounting.to_dict(), summary=accounting.line)

    def with_warning(self, text: str) -> "RunResult":
        """Return a copy with one more warning."""
        return self._replace(result=self.result._replace(warnings=(*self.result.warnings, text)))

    @property
    def energy_j(self) -> float | None:
        """Joules; None when nothing could be read or another run counts them."""
        return self.result.energy_j if self.reported else None

    @property
    def reported(self) -> bool:
        """True if this run reports the devices it read."""
        return self.counted or self.nested

    @property
    def missing(self) -> tuple[Missing, ...]:
        """Parts that are not in the total."""
        if self.reported:
            return self.result.missing
        reason = f"counted once on this node, by run {self.counted_by or 'of another rank'}"
        return tuple(Missing(d.name, reason) for d in self.result.domains)

    def to_dict(self) -> dict[str, Any]:
        """Return the data of `--json`."""
        result = self.result
        cost = self.accounting.get("cost") or {}
        domains = [
            {
                "name": d.name,
                "energy_j": d.energy_j,
                "provenance": d.provenance.value,
                "uncertainty_j": d.uncertainty_j,
                "source": d.source,
                "scope": d.scope.value,
                "in_total": d.in_total,
                "covered": d.covered,
            }
            for d in result.domains
            if d.energy_j is not None
        ]
        return {
            "run_id": self.run_id,
            "status": self.status.value,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "started_wall_s": self.started_wall_s,
            "duration_s": result.duration_s,
            "energy_j": self.energy_j,
            "uncertainty_j": result.uncertainty_j if self.reported else None,
            "complete": result.complete and self.reported,
            "domains": domains if self.reported else [],
            "missing": [
                {"name": m.name, "reason": m.reason, "remedy": m.remedy} for m in self.missing
            ],
            "warnings": list(result.warnings),
            "carbon_g": self.accounting.get("carbon_g"),
            "cost": cost.get("amount"),
            "currency": cost.get("currency"),
            "labels": self.accounting.get("labels", {}),
            "accounting": dict(self.accounting),
            "counted": self.counted,
            "counted_by": self.counted_by,
            "left_out": [
                {"name": name, "reason": each.because}
                for each in self.left_out
                for name in each.names
            ],
            "shared": None if self.shared is None else self.shared.to_dict(),
            "saving": None if self.saving is None else dict(self.saving),
            "summary": self.summary,
        }

    def to_end_dict(self) -> dict[str, Any]:
        """Return the data of the last frame of a journal."""
        return {
            "wall_s": self.started_wall_s + self.result.duration_s,
            "status": self.status.value,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "result": self.result.to_dict(),
            "accounting": dict(self.accounting),
            "counted": self.counted,
            "counted_by": self.counted_by,
            "shared": None if self.shared is None else self.shared.to_dict(),
            "saving": None if self.saving is None else dict(self.saving),
        }


def _idle(settings: Settings, machine_id: str, now_wall_s: float) -> tuple[Any, str]:
    """Return this machine's idle lines, if it has any, and their age."""
    from wattloop.accounting.idle import idle_path, load_idle

    try:
        record = load_idle(idle_path(settings.store_location, machine_id))
    except WattloopError as error:
        return None, str(error)
    if record is None:
        return None, ""
    return record.lines, record.note(now_wall_s, os.uname().release)
