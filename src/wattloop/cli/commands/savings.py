"""`wattloop savings`: what `wattloop run --save` saved, summed up, with its evidence."""

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from wattloop.cap.saver.proof import format_percent
from wattloop.cap.saver.totals import (
    GROUPS,
    RunSaving,
    SavingsSum,
    format_interval,
    format_saved,
    group_savings,
    read_savings,
    sum_savings,
)
from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import file_option, option
from wattloop.cli.output import check_target, print_rows, say, write_json, write_text
from wattloop.cli.stored import nothing_yet, run_filter
from wattloop.core.errors import ConfigError
from wattloop.core.table import records_csv
from wattloop.core.units import format_energy, format_mass

app = Verb()
UNKNOWN = "–"
NAME_SHOWN = 24


@app.command("savings", example="wattloop savings --since 30d --by user")
def savings(
    *,
    since: str | None = option(
        "--since TIME", "Runs begun since 2026-05-01, '7 d' or 12h (default: all)."
    ),
    by: str | None = option("--by GROUP", "Sums per user, job, project or gpu."),
    csv_file: str | None = file_option(
        "--csv -o FILE", "Write a row per run, or per group with --by; - is standard output."
    ),
    given: StoreOptions,
) -> None:
    """Sum up what 'wattloop run --save' saved: energy, money and CO2e, with 90% intervals.

    Runs in which nothing was set are listed with what they could have saved.
    """
    if by is not None and by not in GROUPS:
        raise ConfigError(f"--by {by}: unknown; choose one of {', '.join(GROUPS)}")
    if csv_file == "-" and given.json_file == "-":
        raise ConfigError("--csv - and --json - both go to standard output; give one a file")
    check_target(csv_file, "--csv")
    since_wall_s = run_filter(None, None, [], since=since).since_wall_s
    with given.open_existing_store() as store:
        runs = [] if store is None else read_savings(store, given.settings(None), since_wall_s)
    total = sum_savings(runs)
    groups = {} if by is None else group_savings(runs, by)
    of_groups = [{"name": name, **each.to_dict()} for name, each in groups.items()]
    of_runs = [run.to_dict() for run in runs]
    sums = {"since_wall_s": since_wall_s, "by": by, "total": total.to_dict()}
    write_json({**sums, "groups": of_groups, "runs": of_runs}, given.json_file)
    if csv_file is not None:
        write_text(_csv(of_groups if by else of_runs), csv_file, "--csv")
    if "-" in (given.json_file, csv_file):
        return
    if not runs:
        say(nothing_yet(given.store, given.config) if store is None else _nothing(since))
        return
    for line in format_sum(total):
        sys.stdout.write(line + "\n")
    if by is None:
        _print_runs(runs)
    else:
        _print_groups(groups, by)


def format_sum(total: SavingsSum) -> list[str]:
    """Return the lines of a sum: energy, time, money, CO2e, and what could have been saved."""
    lines = []
    many = f"{total.compared} run{'s' * (total.compared != 1)}"
    if total.saved_j is not None and total.saved_pct is not None:
        share = format_percent(total.saved_pct)
        lines.append(f"saved       {format_saved(total.saved_j)}")
        lines.append(f"            {share} of the GPU energy of {many}")
    else:
        lines.append("saved       nothing that was compared with a reference")
    if total.slowdown_pct is not None:
        lines.append(f"time        {format_percent(total.slowdown_pct, '+')}")
    if total.rest_j is not None and total.rest_j > 0:
        rest = format_energy(total.rest_j)
        lines.append(f"            rest of the nodes in it: {rest}, not subtracted")
    for currency, cost in total.cost.items():
        lines.append(f"money       {format_interval(cost)} {currency}{_of(total.with_cost, total)}")
    if total.carbon_g is not None:
        grams = total.carbon_g
        bounds = f"{format_mass(grams.low)} to {format_mass(grams.high)}"
        carbon = f"{format_mass(grams.value)} ({bounds})"
        lines.append(f"CO2e        {carbon}{_of(total.with_carbon, total)}")
    if total.observed:
        many = f"{total.observed} run{'s' * (total.observed != 1)} where nothing was set"
        could = (
            "unknown" if total.expected_j is None else f"{format_saved(total.expected_j)}, modelled"
        )
        lines.append(f"could save  {could}; {many}")
    if total.left_alone:
        lines.append(f"left alone  {total.left_alone} run{'s' * (total.left_alone != 1)}")
    return lines


def _nothing(since: str | None) -> str:
    when = f" since {since}" if since else ""
    return f"no run with a saver{when}; try: wattloop run --save -- python train.py"


def _print_runs(runs: Sequence[RunSaving]) -> None:
    headers = (
        *("run", "name", "user", "begun", "setting", "saved", "of energy", "time"),
        *("slices", "pairs", "remark"),
    )
    rows = [
        (
            run.run_id,
            run.name[:NAME_SHOWN],
            run.user,
            f"{datetime.fromtimestamp(run.started_wall_s).astimezone():%Y-%m-%d %H:%M}",
            run.setting,
            UNKNOWN if run.saved_j is None else format_saved(run.saved_j),
            UNKNOWN if run.saved_pct is None else format_percent(run.saved_pct),
            UNKNOWN if run.slowdown_pct is None else format_percent(run.slowdown_pct, "+"),
            f"{run.reference_slices} + {run.saving_slices}",
            str(run.pairs),
            _remark(run),
        )
        for run in runs
    ]
    print_rows(
        headers,
        rows,
        spare=("user", "begun", "pairs", "slices", "remark", "name"),
        title="slices: at the reference + at other settings; pairs: compared; intervals: 90%",
    )


def _remark(run: RunSaving) -> str:
    if run.expected_j is not None:
        return f"could have saved {format_saved(run.expected_j)}: {run.reason or 'only observed'}"
    if run.saved_j is None:
        return f"{run.state.value}: {run.reason}" if run.reason else run.state.value
    return run.reason


def _print_groups(groups: dict[str, SavingsSum], by: str) -> None:
    headers = (by, "runs", "saved", "of energy", "time", "money", "CO2e", "could save")
    rows = [
        (
            name,
            str(each.runs),
            UNKNOWN if each.saved_j is None else format_saved(each.saved_j),
            UNKNOWN if each.saved_pct is None else format_percent(each.saved_pct),
            UNKNOWN if each.slowdown_pct is None else format_percent(each.slowdown_pct, "+"),
            ", ".join(f"{cost.value:.3g} {unit}" for unit, cost in each.cost.items()) or UNKNOWN,
            UNKNOWN if each.carbon_g is None else format_mass(each.carbon_g.value),
            UNKNOWN if each.expected_j is None else format_saved(each.expected_j),
        )
        for name, each in groups.items()
    ]
    print_rows(headers, rows, spare=("could save", "CO2e", "money", "time"))


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Write one column per number: `saved_j`, `saved_j_low`, `saved_j_high`."""
    return records_csv([_flat(row) for row in rows])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and set(value) == {"value", "low", "high"}:
            flat |= {
                name: value["value"],
                f"{name}_low": value["low"],
                f"{name}_high": value["high"],
            }
        elif isinstance(value, dict):  # money by currency
            for key, inner in value.items():
                flat |= _flat({f"{name}_{key}": inner})
        else:
            flat[name] = value
    return flat


def _of(count: int, total: SavingsSum) -> str:
    return "" if count == total.compared else f", of {count} of {total.compared} runs"
