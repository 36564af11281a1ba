"""A round's plan, carried out: who is stopped, taken back, let through, capped anew."""

from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.slurm.backoff import BackOff
from wattloop.schedule.slurm.carrying_out import CarryingOut
from wattloop.schedule.slurm.event_log import EventLog
from wattloop.schedule.slurm.gate import Gate
from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.opened import Opened, Why
from wattloop.schedule.slurm.opening import wanted_start
from wattloop.schedule.slurm.plan import PlannedStart
from wattloop.schedule.slurm.planning import Planned
from wattloop.schedule.slurm.round_report import RoundReport
from wattloop.schedule.slurm.site import Site
from wattloop.schedule.slurm.snapshot import Snapshot
from wattloop.schedule.slurm.state import DriverState
from wattloop.schedule.slurm.taking_back import no_longer_wanted, without_power_given_twice

__all__ = ["Acting"]


class Acting:
    """Does what a plan says.

    Args:
        policy: whose plans they are.
        state: notes of the driver.
        log: what is refused.
        gate: through which jobs are let.
        carrying_out: who tells Slurm.
        backoff: jobs that Slurm refuses.
        most_openings: jobs let through in one round.
    """

    def __init__(
        self,
        policy: Policy,
        state: DriverState,
        log: EventLog,
        gate: Gate,
        carrying_out: CarryingOut,
        backoff: BackOff,
        most_openings: int,
    ) -> None:
        self._policy, self._state, self._log, self._gate = policy, state, log, gate
        self._carrying_out, self._backoff = carrying_out, backoff
        self._most_openings = most_openings

    def carry_out(
        self, found: Planned, snapshot: Snapshot, site: Site, now_s: float, report: RoundReport
    ) -> None:
        """Tell Slurm; the report says what.

        Raises:
            SlurmError: it does not answer.
        """
        live, plan = found.live, found.plan
        for number in plan.preempts:
            if self._carrying_out.preempt(live.jobs[number]):
                report.preempts.append(live.jobs[number].key)
        wanted = [
            *((_passed(job, now_s), job) for job in snapshot.passing),
            *self._wanted(found, site),
        ]
        kept = {each.key for each, _ in wanted}
        kept.update(live.jobs[number].key for number in live.coming)
        stale = no_longer_wanted(self._state.opened, kept)
        if stale:
            self._carrying_out.close(stale, snapshot.by_key)
            budget_w = site.budget_w.at(now_s)
            wanted = without_power_given_twice(wanted, stale, self._state.opened, budget_w)
        self._open(wanted, now_s, report)
        for job, option in plan.recaps:
            cap_w = float(live.view.queue.options(job).cap_w[option])
            self._carrying_out.recap(live.jobs[job], cap_w)
            report.recaps.append(live.jobs[job].key)

    def users(self) -> set[str]:
        """Whoever has a start at hand."""
        return {each.user for each in self._state.opened.values() if each.why != "ran"}

    def _open(
        self, wanted: list[tuple[Opened, SlurmJob]], now_s: float, report: RoundReport
    ) -> None:
        unknown = self._gate.unknown_users
        for name in unknown & {each.user for each, _ in wanted}:
            self._log.add("refused", f"user {name}: Slurm lets nobody of that name through")
        wanted = [pair for pair in wanted if pair[0].user not in unknown][: self._most_openings]
        needed = {each.user for each, _ in wanted}
        if not needed <= self._gate.is_open_for:
            self._gate.keep({*self.users(), *needed})
        for key in self._carrying_out.open(wanted):
            self._backoff.add(key, now_s)
        report.starts = [each.key for each, _ in wanted if each.why == "start"]
        report.standby = [each.key for each, _ in wanted if each.why == "standby"]

    def _wanted(self, found: Planned, site: Site) -> list[tuple[Opened, SlurmJob]]:
        """Starts of the plan and those on standby. Who is back from a stop starts next round."""
        starts: list[tuple[Why, PlannedStart]] = [
            *(("start", each) for each in found.plan.starts),
            *(("standby", each) for each in found.standby),
        ]
        wanted: list[tuple[Opened, SlurmJob]] = []
        for why, each in starts:
            job = found.live.jobs[each.job]
            if job.is_pending:
                opened = wanted_start(
                    found.live,
                    site,
                    each,
                    why,
                    before=self._state.opened.get(job.key),
                    sets_caps=self._policy.sets_caps,
                    may_pin=not self._backoff.times(job.key),
                )
                wanted.append((opened, job))
        return wanted


def _passed(job: SlurmJob, now_s: float) -> Opened:
    return Opened(key=job.key, user=job.user, why="pass", at_s=now_s)
