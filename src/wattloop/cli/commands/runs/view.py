"""Terminal output of stored runs: list, details in short and in full, comparison."""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from wattloop.accounting.energy_delay import dcie
from wattloop.accounting.summary import LEAST_EQUIVALENT, cost_of
from wattloop.cli.output import (
    DOMAIN_HEADERS,
    UNKNOWN,
    domain_rows,
    is_terminal,
    print_rows,
    remarks,
    say,
    terminal_room,
)
from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope, picked
from wattloop.core.results import WindowResult
from wattloop.core.settings import Settings
from wattloop.core.units import (
    format_change,
    format_duration,
    format_edp,
    format_energy,
    format_mass,
    format_money,
    format_number,
    format_power,
    format_share,
    iso_time,
    short_energy,
)
from wattloop.integrations.run_phases import StepTotals, format_totals
from wattloop.integrations.serving import ServingTotals, format_serving
from wattloop.measure.job_energy import MeasuredJobEnergy, NodeRunEnergy
from wattloop.store.comparison import Cell, ComparedQuantity, RunComparison
from wattloop.store.database import Store
from wattloop.store.runs import (
    RunFilter,
    RunRecord,
    known_tariff,
    list_runs,
    list_trial_groups,
    live_runs,
)
from wattloop.store.trial_groups import TrialGroup, group_of


def meaning_lines(accounting: Mapping[str, Any] | None) -> list[str]:
    """Format the accounting that was stored with the run."""
    if not accounting:
        return []
    return [
        *_application(accounting.get("application")),
        *_estimate("node", accounting.get("node")),
        *_grid(accounting),
        *_efficiency(accounting.get("efficiencies") or ()),
        *(f"insight      {insight['text']}" for insight in accounting.get("insights") or ()),
        *_equivalents(accounting.get("equivalents") or ()),
        *(f"note         {note}" for note in accounting.get("notes") or ()),
    ]


def _application(application: Mapping[str, Any] | None) -> Iterator[str]:
    if application and application.get("energy_j") is not None:
        yield f"application  {format_energy(application['energy_j'])} above the machine's idle line"


def _estimate(name: str, estimate: Mapping[str, Any] | None) -> Iterator[str]:
    if not estimate or estimate.get("energy_j") is None:
        return
    spread = short_energy(estimate.get("uncertainty_j") or 0.0, estimate["energy_j"])
    yield f"{name:12} {format_energy(estimate['energy_j'])} ± {spread} ({estimate['provenance']})"


def _grid(accounting: Mapping[str, Any]) -> Iterator[str]:
    facility = accounting.get("facility") or {}
    words = []
    if accounting.get("carbon_g") is not None:
        words.append(f"{format_mass(accounting['carbon_g'])} CO2e")
    cost = accounting.get("cost")
    if cost:
        words.append(f"{format_money(cost['amount'])} {cost['currency']}")
    if words and facility.get("energy_j") is not None:
        pue = ""
        if facility.get("pue"):
            pue = f" at PUE {facility['pue']:g} (DCiE {dcie(facility['pue']):.0%})"
        yield f"grid         {format_energy(facility['energy_j'])}{pue}: {', '.join(words)}"


def _efficiency(efficiencies: Any) -> Iterator[str]:
    for one in efficiencies:
        weak = "" if one["provenance"] == "measured" else f", {one['provenance']}"
        yield (
            f"efficiency   {one['name']}: {one['value']:.2f} {one['label']} "
            f"(of {format_number(one['tdp_w'], 3)} W: {one['basis']}{weak})"
        )


def _equivalents(equivalents: Any) -> Iterator[str]:
    words = [
        f"{format_number(e['amount'], 2)} {e['unit']} {e['text']}"
        for e in equivalents
        if e["amount"] >= LEAST_EQUIVALENT
    ]
    if words:
        yield f"as much as   {'; '.join(words)}"


WINDOWS_SHOWN = 20
NAME_SHOWN = 60


class ListOrder(NamedTuple):
    """Order of a list, and the tariff for rows that have no cost of their own."""

    by: str = "newest"
    tariff_per_kwh: float | None = None
    currency: str = ""

    def cost(self, row: RunRecord | TrialGroup) -> tuple[float, str] | None:
        accounting = row.accounting or {} if isinstance(row, RunRecord) else {}
        own = accounting.get("cost") or {}
        if own.get("amount") is not None:
            return float(own["amount"]), str(own.get("currency") or "")
        grid_j = (
            (accounting.get("facility") or {}).get("energy_j")
            if isinstance(row, RunRecord)
            else row.facility_j
        ) or row.energy_j
        if self.tariff_per_kwh is None or grid_j is None:
            return None
        return cost_of(grid_j, self.tariff_per_kwh, self.currency).amount, self.currency

    def key(self, row: RunRecord | TrialGroup) -> float:
        if self.by == "cost":
            return (self.cost(row) or (0.0, ""))[0]
        return (row.energy_j if self.by == "energy" else row.duration_s) or 0.0


NEWEST = ListOrder()


@dataclass(frozen=True, slots=True)
class RunList:
    """Rows of `runs list`, newest first: runs, and experiments in place of their trials."""

    rows: Sequence[RunRecord | TrialGroup] = ()
    more: bool = False
    order: ListOrder = NEWEST

    @property
    def records(self) -> list[RunRecord]:
        return [row for row in self.rows if isinstance(row, RunRecord)]

    @property
    def groups(self) -> list[TrialGroup]:
        return [row for row in self.rows if isinstance(row, TrialGroup)]


def order_of(by: str, settings: Settings, store: Store | None) -> ListOrder:
    """Return the order with this name, and the tariff of the settings or of the newest run."""
    if by not in ("newest", "cost", "energy", "duration"):
        raise ConfigError(f"--sort {by}: unknown; choose newest, cost, energy or duration")
    if store is None:
        return ListOrder(by)
    tariff = known_tariff(store, settings)
    return ListOrder(by, tariff.per_kwh, tariff.currency)


def list_rows(
    store: Store, wanted: RunFilter, limit: int, order: ListOrder = NEWEST, *, folded: bool = False
) -> RunList:
    """Return the first rows, running ones first unless sorted; 0 sets no limit."""
    groups = list_trial_groups(store, wanted) if folded else []
    known = [group.experiment_id for group in groups]
    live = [
        record
        for record in live_runs(store)
        if _passes(record, wanted) and group_of(record.tags, known) is None
    ]
    is_newest = order.by == "newest"
    most = limit + 1 if limit and is_newest else None
    stored = list_runs(store, replace(wanted, trials=not folded), most)
    rows: list[RunRecord | TrialGroup] = [*stored, *groups]
    if groups:
        rows.sort(key=lambda row: row.started_wall_s, reverse=True)
    rows = [*live, *rows]
    if not is_newest:
        rows.sort(key=order.key, reverse=True)
    return RunList(rows[: limit or None], bool(limit) and len(rows) > limit, order)


def print_list(listed: RunList) -> None:
    headers = ["run", "name", "status", "started", "duration", "energy", "±", "power", "how", ""]
    # the identifier tells the start, and energy over duration the power
    spare = ["started", "power", "±", "duration", "status", ""]
    rows = [_list_row(r) if isinstance(r, RunRecord) else _group_row(r) for r in listed.rows]
    if len({row[2] for row in rows}) == 1:  # a status that all have tells least
        spare = ["started", "power", "status", "±", "duration", ""]
    if listed.order.by == "cost":
        costs = [listed.order.cost(row) for row in listed.rows]
        if not any(costs):
            say("no cost is known: state --tariff in wattloop.yaml, or use --sort energy")
        words = [f"{format_money(c[0])} {c[1]}" if c else UNKNOWN for c in costs]
        rows = _inserted(headers, rows, 5, "cost", words)
    users = [r.user if isinstance(r, RunRecord) else r.user_name for r in listed.rows]
    if len(set(users)) > 1:
        rows = _inserted(headers, rows, 2, "user", [user or UNKNOWN for user in users])
    print_rows(headers, rows, spare=spare)
    if listed.groups:
        trials = sum(group.runs for group in listed.groups)
        are = " is" if trials == 1 else "s are"
        say(f"{trials:,} trial{are} folded under their experiment; see each with --all")
    if listed.more:
        most = "newest" if listed.order.by == "newest" else "with the most " + listed.order.by
        say(f"the {len(listed.rows)} {most}; see all with --limit 0")


def _inserted(
    headers: list[str], rows: Sequence[tuple[str, ...]], at: int, header: str, cells: Sequence[str]
) -> list[tuple[str, ...]]:
    headers.insert(at, header)
    return [(*row[:at], cell, *row[at:]) for row, cell in zip(rows, cells, strict=True)]


def brief(record: RunRecord) -> dict[str, Any]:
    result = record.result
    return {
        **picked(record, "run_id name status"),
        "started": iso_time(record.started_wall_s),
        "duration_s": record.duration_s,
        "energy_j": record.energy_j,
        "uncertainty_j": None if result is None else result.uncertainty_j,
        "power_w": None if result is None else result.power_w,
        "provenance": None if result is None or not result.provenance else result.provenance.value,
        "complete": result is not None and result.complete,
        **picked(record, "exit_code user host tags counted counted_by shared"),
    }


LINES_SHOWN = 10


def print_brief(
    record: RunRecord,
    windows: Sequence[WindowResult],
    steps: Sequence[dict[str, Any]],
    totals: StepTotals | None = None,
    serving: ServingTotals | None = None,
) -> None:
    """Print what people look for in at most ten lines, and how to see the rest."""
    lasted = "" if record.duration_s is None else f", {format_duration(record.duration_s)}"
    started = f"{_local(record.started_wall_s)} on {record.host or 'unknown host'}"
    lines = [
        f"run       {record.run_id}  {record.name}",
        f"status    {_status(record)}, started {started}{lasted}",
    ]
    if record.command:
        command = shlex.join(record.command).replace("\n", "\\n")
        lines.append(_cut(f"command   {command}"))
    power_w = None if record.result is None else record.result.power_w
    power = f", {format_power(power_w)} on average" if power_w is not None else ""
    lines.append(f"energy    {_total(record)}{power}")
    lines += _parts(record.result) + _step_lines(totals)[:2] + _serving_lines(serving)[:1]
    if record.saving is not None:
        lines.append(f"saving    {_saving(record.saving)}")
    lines += [f"grid      {line[13:]}" for line in _grid(record.accounting or {})]
    if record.tags:
        lines.append(_cut("tags      " + _tags(record)))
    result, accounting = record.result, record.accounting or {}
    missing = [] if result is None else result.missing
    if missing:
        lines.append(_cut(f"missing   {', '.join(part.name for part in missing)}"))
    notes = [*record.notes, *([] if result is None else result.warnings)]
    room = LINES_SHOWN - 1 - len(lines)
    lines += [f"note      {note}" for note in notes[: max(0, room)]]
    counts = [
        (len(missing), "missing part"),
        (len(notes[max(0, room) :]) + len(accounting.get("notes") or ()), "note"),
        (len(accounting.get("insights") or ()), "insight"),
        (len(windows), "window"),
        *((n, kind) for kind, n in _kinds(steps)),
    ]
    more = ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts if n)
    _write([*lines[: LINES_SHOWN - 1], f"more      {more + '; ' if more else ''}all of it with -v"])


def _kinds(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return sorted(Counter(str(step.get("kind", "step")) for step in steps).items())


def _cut(line: str) -> str:
    """Shorten a line to the terminal: -v has it whole."""
    room = terminal_room(sys.stdout)
    return line if room is None or len(line) <= room else f"{line[: room - 1]}…"


def _parts(result: WindowResult | None) -> list[str]:
    if result is None:
        return []
    known = [(d.name, d.energy_j) for d in result.counted if d.energy_j is not None]
    if len(known) < 2:
        return []
    known.sort(key=lambda part: -part[1])
    return [
        _cut(
            "parts     "
            + ", ".join(f"{name} {short_energy(j, result.energy_j)}" for name, j in known)
        )
    ]


def _step_lines(totals: StepTotals | None) -> list[str]:
    if totals is None:
        return []
    heads = ("steps     ", "phases    ")[:: -1 if totals.inferred else 1]
    return list(map("".join, zip(heads, format_totals(totals), strict=False)))


def _serving_lines(serving: ServingTotals | None) -> list[str]:
    if serving is None:
        return []
    return [f"{'' if n else 'serving':10}{line}" for n, line in enumerate(format_serving(serving))]


def _tags(record: RunRecord) -> str:
    return " ".join(f"{key}={value}" for key, value in record.tags.items())


def print_run(
    record: RunRecord,
    windows: Sequence[WindowResult],
    steps: Sequence[dict[str, Any]],
    totals: StepTotals | None = None,
    serving: ServingTotals | None = None,
) -> None:
    lines = [f"run       {record.run_id}", f"name      {record.name}"]
    lines.append(f"status    {_status(record)}")
    if record.command:
        lines.append(f"command   {shlex.join(record.command)}")
    started = _local(record.started_wall_s)
    lines.append(f"started   {started} on {record.host or 'unknown host'}")
    if record.duration_s is not None:
        lines.append(f"duration  {format_duration(record.duration_s)}")
    lines.append(f"energy    {_total(record)}")
    if record.tags:
        lines.append(f"tags      {_tags(record)}")
    lines += _step_lines(totals) + _serving_lines(serving)
    if record.saving is not None:
        lines.append(f"saving    {_saving(record.saving)}")
    _write(lines)
    if record.result is not None and record.result.domains:
        print_rows(DOMAIN_HEADERS, domain_rows(record.result), spare=("power",))
    _write(_remarks(record))
    if windows:
        print_rows(
            ("window", "duration", "energy", "±"),
            [_window_row(window) for window in windows[:WINDOWS_SHOWN]],
            title=f"{len(windows)} window{'s' * (len(windows) != 1)}"
            + (f", the first {WINDOWS_SHOWN}" if len(windows) > WINDOWS_SHOWN else ""),
        )
    if steps:
        known = ", ".join(f"{n} {kind}{'s' * (n != 1)}" for kind, n in _kinds(steps))
        _write([f"{known}; export them with: {_export(record)} --what steps"])


def print_comparison(comparison: RunComparison) -> None:
    headers = ["quantity", _heading(comparison.records[0])]
    for record in comparison.records[1:]:
        headers += [_heading(record), "difference"]
    print_rows(headers, [_comparison_row(quantity) for quantity in comparison.quantities])
    _write(comparison.verdicts)
    _write([f"note: {note}" for note in comparison.notes])


def _list_row(record: RunRecord) -> tuple[str, ...]:
    result = record.result
    duration_s = record.duration_s
    if duration_s is None and record.status.value == "running":
        duration_s = max(0.0, time.time() - record.started_wall_s)
    power_w = None if result is None else result.power_w
    remark = "" if result is None or result.complete else "incomplete"
    if not record.counted:
        # an identifier a second time would cost a terminal three other columns
        elsewhere = "elsewhere" if is_terminal(sys.stdout) else f"by {record.counted_by}"
        remark = f"counted {elsewhere}"
    elif record.shared:
        remark = " ".join(filter(None, (remark, _shared(record))))
    return (
        record.run_id,
        record.name if len(record.name) <= NAME_SHOWN else f"{record.name[:NAME_SHOWN]}…",
        _status(record),
        _local(record.started_wall_s),
        UNKNOWN if duration_s is None else format_duration(duration_s),
        UNKNOWN if record.energy_j is None else short_energy(record.energy_j),
        UNKNOWN
        if result is None or record.energy_j is None
        else short_energy(result.uncertainty_j, record.energy_j),
        UNKNOWN if power_w is None else format_power(power_w),
        UNKNOWN if result is None or not result.provenance else result.provenance.value,
        remark,
    )


def _group_row(group: TrialGroup) -> tuple[str, ...]:
    """Return the row of an experiment: its identifier is for `sweep show` and the like."""
    return (
        group.experiment_id,
        group.name,
        group.status,
        _local(group.started_wall_s),
        format_duration(group.duration_s),
        UNKNOWN if group.energy_j is None else short_energy(group.energy_j),
        "",
        "",
        group.provenance or UNKNOWN,
        f"{group.kind} of {group.runs} run{'s' * (group.runs != 1)}",
    )


def _saving(data: dict[str, Any]) -> str:
    from wattloop.cap.saver.proof import SavingResult, format_saving

    try:
        return format_saving(SavingResult.from_dict(data))
    except ConfigError as error:
        return f"not readable: {error}"


def _shared(record: RunRecord) -> str:
    """Format `shared 50%` and the part that another run counts."""
    share = (record.shared or {}).get("share")
    text = f"shared {format_share(share, 0)}" if isinstance(share, float) else "shared"
    return f"{text}, {format_share(record.left_out, 0)} left out" if record.left_out else text


def _window_row(window: WindowResult) -> tuple[str, ...]:
    energy_j = window.energy_j
    return (
        window.name,
        format_duration(window.duration_s),
        UNKNOWN if energy_j is None else format_energy(energy_j),
        UNKNOWN if energy_j is None else short_energy(window.uncertainty_j, energy_j),
    )


def _comparison_row(quantity: ComparedQuantity) -> list[str]:
    name = f"{quantity.name} ({quantity.scope})" if quantity.scope else quantity.name
    row = [name.replace("edp", "EDP"), _quantity(quantity, quantity.cells[0])]
    for cell in quantity.cells[1:]:
        row += [_quantity(quantity, cell), _difference(cell)]
    return row


def _quantity(quantity: ComparedQuantity, cell: Cell) -> str:
    if cell.value is None:
        return UNKNOWN
    if quantity.unit == "s":
        return format_duration(cell.value)
    if quantity.unit == "W":
        return format_power(cell.value)
    if quantity.unit == "J":
        return f"{short_energy(cell.value)} ± {short_energy(cell.uncertainty, cell.value)}"
    if quantity.unit == "J s":
        return format_edp(cell.value)
    return f"{format_number(cell.value, 3)} {quantity.unit}"


def _difference(cell: Cell) -> str:
    if cell.difference is None or cell.difference_uncertainty is None:
        return UNKNOWN
    text = format_change(cell.difference, cell.difference_uncertainty)
    return text if cell.real else f"{text} (within uncertainty)"


def _heading(record: RunRecord) -> str:
    return f"{record.run_id} {record.name}".strip()


def _status(record: RunRecord) -> str:
    if record.signal:
        return f"{record.status.value} (signal {record.signal})"
    if record.exit_code:
        return f"{record.status.value} ({record.exit_code})"
    return record.status.value


def print_slopes(data: dict[str, Any]) -> None:
    rows = [
        (
            slope["device"],
            format_power(slope["slope_w"]),
            short_energy(slope["intercept_j"]),
            f"{slope['r2']:.3f}",
            str(slope["runs"]),
        )
        for slope in data["slopes"]
    ]
    if rows:
        print_rows(("device", "slope", "at 0 s", "R2", "runs"), rows)
    for missing in data["missing"]:
        say(f"{missing['device']}: {missing['reason']}; {missing['remedy']}")
    if not rows and not data["missing"]:
        say("no run with a reading yet; try: wattloop run -- python train.py")


SCOPES = {Scope.CPU: "cpu", Scope.GPU: "gpu", Scope.DRAM: "dram"}


def print_job(job: MeasuredJobEnergy) -> None:
    size = f", {job.world_size} ranks" if job.world_size else ""
    _write([f"job       {job.job_id} ({job.kind}{size})"])
    _write([f"duration  {format_duration(job.duration_s)}"])
    _write([f"energy    {_job_total(job)}"])
    for node in job.nodes:
        _write([f"\n{_node_title(node)}"])
        print_rows(DOMAIN_HEADERS, domain_rows(node.result), spare=("power",))
    _write([""])
    headers = ("node", "runs", "duration", *SCOPES.values(), "total", "power")
    print_rows(headers, [_node_row(node) for node in job.nodes])
    _write(_job_remarks(job))


def _job_total(job: MeasuredJobEnergy) -> str:
    if job.energy_j is None:
        return "unknown: nothing could be read; 'wattloop devices' says why"
    partial = "" if job.complete else ", incomplete"
    return (
        f"{format_energy(job.energy_j)} ± {short_energy(job.uncertainty_j, job.energy_j)}{partial}"
    )


def _node_title(node: NodeRunEnergy) -> str:
    died = f", {node.died} died" if node.died else ""
    return f"{node.host}: {len(node.runs)} run(s){died}"


def _node_row(node: NodeRunEnergy) -> tuple[str, ...]:
    result = node.result
    scopes = (result.scope_energy_j(scope) for scope in SCOPES)
    return (
        node.host,
        str(len(node.runs)),
        format_duration(result.duration_s),
        *(UNKNOWN if energy_j is None else format_energy(energy_j) for energy_j in scopes),
        UNKNOWN if result.energy_j is None else format_energy(result.energy_j),
        UNKNOWN if result.power_w is None else format_power(result.power_w),
    )


def _job_remarks(job: MeasuredJobEnergy) -> list[str]:
    lines = []
    for node in job.nodes:
        for part in node.result.missing:
            remedy = f"; {part.remedy}" if part.remedy else ""
            lines.append(f"missing on {node.host}: {part.name}: {part.reason}{remedy}")
        lines += [f"note: {node.host}: {warning}" for warning in node.result.warnings]
    lines += [f"insight: {insight.text}" for insight in job.insights]
    if job.earlier:
        lines.append(
            f"note: {job.earlier} earlier job(s) had the same name; name one of their runs to see "
            "them ('wattloop runs list')"
        )
    return lines


def _total(record: RunRecord) -> str:
    if not record.counted:
        return f"counted by run {record.counted_by}"
    if record.result is None or record.energy_j is None:
        return "nothing could be measured; 'wattloop devices' says why"
    how = record.result.provenance
    partial = "" if record.result.complete else ", incomplete"
    spread = short_energy(record.result.uncertainty_j, record.energy_j)
    shared = f", {_shared(record)} of totals" if record.left_out else ""
    shared = f", {_shared(record)}" if record.shared and not shared else shared
    return f"{format_energy(record.energy_j)} ± {spread} ({how}{partial}{shared})"


def _remarks(record: RunRecord) -> list[str]:
    result = record.result
    lines = [] if result is None else remarks(result.missing, result.warnings)
    lines += [f"note: {note}" for note in record.notes]
    return lines + meaning_lines(record.accounting)


def _passes(record: RunRecord, wanted: RunFilter) -> bool:
    tags = {key: str(value) for key, value in record.tags.items()}
    return (
        (wanted.name is None or fnmatchcase(record.name, wanted.name.replace("[", "[[]")))
        and wanted.status in (None, record.status.value)
        and wanted.host in (None, record.host)
        and (wanted.job is None or str((record.job or {}).get("id")) == wanted.job)
        and (wanted.since_wall_s is None or record.started_wall_s >= wanted.since_wall_s)
        and all(k in tags and v in (None, tags[k]) for k, v in wanted.tags.items())
    )


def _export(record: RunRecord) -> str:
    return f"wattloop runs export {record.run_id}"


def _local(wall_s: float) -> str:
    try:
        return datetime.fromtimestamp(wall_s).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return UNKNOWN


def _write(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
