"""Round after round: look at Slurm, ask the policy, tell Slurm."""

import math
import time
from dataclasses import replace

from wattloop.core.errors import SlurmError
from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.slurm.backoff import BackOff
from wattloop.schedule.slurm.carrying_out import CarryingOut, wanted_start
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.event_log import EventLog
from wattloop.schedule.slurm.gate import Gate
from wattloop.schedule.slurm.job_record import SlurmJob
from wattloop.schedule.slurm.live_view import LiveView
from wattloop.schedule.slurm.looking import Looking, Readings
from wattloop.schedule.slurm.opened import Opened
from wattloop.schedule.slurm.planning import Planned, planned
from wattloop.schedule.slurm.round_report import RoundReport
from wattloop.schedule.slurm.settings import DriverSettings
from wattloop.schedule.slurm.site import Site
from wattloop.schedule.slurm.snapshot import Snapshot
from wattloop.schedule.slurm.state import DriverState
from wattloop.schedule.slurm.taking_back import no_longer_wanted, without_power_given_twice
from wattloop.schedule.slurm.use_book import UseBook

__all__ = ["SlurmDriver"]


class SlurmDriver:
    """A policy at work on a real cluster. Whatever ends it, Slurm goes on by itself.

    Args:
        client: Slurm.
        site: what is ours of it.
        policy: who decides.
        state: notes of this driver, held by this process.
        log: what it does and refuses.
        settings: times and bounds.
        owner: the user who runs it.
        readings: power that nodes report, by node number.
    """

    def __init__(
        self,
        client: SlurmClient,
        site: Site,
        policy: Policy,
        *,
        state: DriverState,
        log: EventLog,
        settings: DriverSettings,
        owner: str,
        readings: Readings = dict,
    ) -> None:
        self.client, self.site, self.policy = client, site, policy
        self.state, self.log, self.settings = state, log, settings
        nodes = ",".join(site.known.names)
        self.gate = Gate(
            client, state.gate_name, nodes, owner, settings.lease_s, now_s=time.monotonic
        )
        site.believed.on_refusal = log.add_refusal
        self._looking = Looking(client, site, readings, settings.nodes_every_s)
        self._carrying_out = CarryingOut(client, state, log, state.gate_name)
        self._backoff = BackOff()
        self._uses = UseBook()
        self._unknown_s: dict[str, float] = {}
        self._gated_s = float("inf")
        self.faults = 0
        self.snapshot = Snapshot()

    def begin(self) -> None:
        """Close the gate, and take up what was left by the last run of this driver.

        Raises:
            SlurmError: Slurm does not let us, or another driver is at work.
        """
        self.gate.ahead_s = self.client.ahead_s()
        if self.gate.ahead_s:
            self.log.add("warning", f"slurmctld's clock is {self.gate.ahead_s:+.0f} s off ours")
        others = self.gate.others()
        if others:
            raise SlurmError(
                f"Slurm: another driver holds these nodes with reservation {others[0]}; stop it, "
                "or wait: it ends by itself when its driver is gone"
            )
        self.gate.keep(each.user for each in self.state.opened.values())
        self._gated_s = time.time() + self.gate.ahead_s

    def round(self) -> RoundReport:
        """Look, decide, tell.

        Raises:
            SlurmError: Slurm does not answer, or not as it should.
        """
        try:
            return self._round()
        except SlurmError:
            self.gate.doubt()
            raise

    def _round(self) -> RoundReport:
        report, calls = RoundReport(), sum(self.client.commands.calls.values())
        begun_s = time.perf_counter()
        if self.gate.keep(self._users()):
            self._gated_s = time.time() + self.gate.ahead_s
        self.snapshot = snapshot = self._looking.jobs(self.gate.name, self.state.opened)
        report.at_s = now_s = time.time() + self.gate.ahead_s
        self._take_note(snapshot, now_s)
        self._carrying_out.set_free(snapshot.by_key)
        report.read_s = time.perf_counter() - begun_s
        plan = self._plan(snapshot, now_s, report)
        begun_s = time.perf_counter()
        if plan is not None:
            self._carry_out(plan, snapshot, now_s, report)
        report.carry_s = time.perf_counter() - begun_s
        report.calls = sum(self.client.commands.calls.values()) - calls
        self.state.save()
        return report

    def step_back(self) -> None:
        """Undo everything that has not come to be, and let Slurm go on by itself."""
        snapshot = self._looking.jobs(self.gate.name, self.state.opened)
        self._carrying_out.set_free(snapshot.by_key)
        self._carrying_out.close(list(self.state.opened), snapshot.by_key)
        self.gate.remove()
        self._carrying_out.nudge(snapshot.waiting)
        self.state.save()

    def _plan(self, snapshot: Snapshot, now_s: float, report: RoundReport) -> Planned | None:
        begun_s = time.perf_counter()
        live = self._looking.view(
            snapshot,
            opened=self.state.opened,
            use_gpu_s=self.state.use_gpu_s,
            set_aside={**self._backoff.until_s, **self._unknown(snapshot, now_s)},
            now_s=now_s,
            report=report,
        )
        report.view_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        within_s = 2 * self.settings.interval_s + 1.0 if self.settings.standby else None
        found, fault = planned(live, self.site, self.policy, within_s)
        report.policy_s = time.perf_counter() - begun_s
        if fault:
            self.faults += 1
            report.fault = fault
            self.log.add("fault", f"policy {self.policy.name}: {fault}; this round does nothing")
            return None
        assert found is not None
        self.faults = 0
        report.refusals = found.plan.refusals
        report.short_of_power, report.wake_s = found.plan.short_of_power, found.plan.wake_s
        for refusal in found.plan.refusals:
            self.log.add("refused", refusal)
        return found

    def _unknown(self, snapshot: Snapshot, now_s: float) -> dict[str, float]:
        """Jobs whose model is being predicted; not for longer than that is worth waiting for."""
        first_s = {job.key: self._unknown_s.get(job.key, now_s) for job in snapshot.waiting}
        self._unknown_s = {
            job.key: first_s[job.key]
            for job in snapshot.waiting
            if now_s - first_s[job.key] < self.settings.prediction_s
            and self.site.believed.is_coming(job)
        }
        return dict.fromkeys(self._unknown_s, math.inf)

    def _carry_out(
        self, found: Planned, snapshot: Snapshot, now_s: float, report: RoundReport
    ) -> None:
        live, plan = found.live, found.plan
        for number in plan.preempts:
            if self._carrying_out.preempt(live.jobs[number]):
                report.preempts.append(live.jobs[number].key)
        wanted = [
            *((_passed(job, now_s), job) for job in snapshot.passing),
            *self._wanted(live, found),
        ]
        kept = {each.key for each, _ in wanted}
        kept.update(live.jobs[number].key for number in live.coming)
        stale = no_longer_wanted(self.state.opened, kept)
        if stale:
            self._carrying_out.close(stale, snapshot.by_key)
            budget_w = self.site.budget_w.at(now_s)
            wanted = without_power_given_twice(wanted, stale, self.state.opened, budget_w)
        for name in self.gate.unknown_users & {each.user for each, _ in wanted}:
            self.log.add("refused", f"user {name}: Slurm lets nobody of that name through")
        wanted = [pair for pair in wanted if pair[0].user not in self.gate.unknown_users]
        wanted = wanted[: self.settings.most_openings]
        needed = {each.user for each, _ in wanted}
        if not needed <= self.gate.is_open_for:
            self.gate.keep({*self._users(), *needed})
        for key in self._carrying_out.open(wanted):
            self._backoff.add(key, now_s)
        report.starts = [each.key for each, _ in wanted if each.why == "start"]
        report.standby = [each.key for each, _ in wanted if each.why == "standby"]
        for job, option in plan.recaps:
            cap_w = float(live.view.queue.options(job).cap_w[option])
            self._carrying_out.recap(live.jobs[job], cap_w)
            report.recaps.append(live.jobs[job].key)

    def _wanted(self, live: LiveView, found: Planned) -> list[tuple[Opened, SlurmJob]]:
        """Starts of the plan and those on standby. Who is back from a stop starts next round."""
        wanted: list[tuple[Opened, SlurmJob]] = []
        for why, starts in (("start", found.plan.starts), ("standby", found.standby)):
            for each in starts:
                job = live.jobs[each.job]
                if job.is_pending:
                    opened = wanted_start(
                        live,
                        self.site,
                        each,
                        "start" if why == "start" else "standby",
                        before=self.state.opened.get(job.key),
                        sets_caps=self.policy.sets_caps,
                        may_pin=not self._backoff.times(job.key),
                    )
                    wanted.append((opened, job))
        return wanted

    def _users(self) -> set[str]:
        return {each.user for each in self.state.opened.values() if each.why != "ran"}

    def _take_note(self, snapshot: Snapshot, now_s: float) -> None:
        """What became of what was asked for; who is where he should not be."""
        jobs = snapshot.by_key
        for key, opened in list(self.state.opened.items()):
            job = jobs.get(key)
            if job is None:
                del self.state.opened[key]
            elif job.has_machines:
                self.state.opened[key] = replace(opened, why="ran")
            elif opened.why == "ran" and key not in self.state.preempting:
                self.log.add("warning", f"job {key}: is back in the queue", job=key)
                self._carrying_out.close([key], jobs)
            elif opened.why == "start" and now_s - opened.at_s > self.settings.patience_s:
                self._take_back(job, now_s)
        if snapshot.strangers:
            for job in snapshot.strangers:
                said = f"job {job.key} of {job.user}: names our reservation by itself"
                self.log.add("refused", said, job=job.key)
            self._carrying_out.close([job.key for job in snapshot.strangers], jobs)
            snapshot.strangers.clear()
        for job in self._uses.look(snapshot.running, self.state.use_gpu_s, now_s):
            is_ours = job.partition in self.site.managed and job.key not in self.state.opened
            if is_ours and job.start_s > self._gated_s + 1:
                said = f"job {job.key}: began by itself"
                self.log.add("warning", said, job=job.key, user=job.user)
        self._backoff.forget_all_but(jobs.keys() & {job.key for job in snapshot.waiting})

    def _take_back(self, job: SlurmJob, now_s: float) -> None:
        wait_s = self._backoff.add(job.key, now_s)
        said = f"job {job.key}: Slurm does not start it ({job.reason}); left out for {wait_s:g} s"
        self.log.add("refused", said, job=job.key)
        self._carrying_out.close([job.key], {job.key: job})
        self.snapshot.coming[:] = [each for each in self.snapshot.coming if each.key != job.key]


def _passed(job: SlurmJob, now_s: float) -> Opened:
    return Opened(key=job.key, user=job.user, why="pass", at_s=now_s)
