"""What `wattloop study` prints."""

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import print_table, say
from wattloop.core.units import format_number
from wattloop.report.study import (
    BEST_COLUMNS,
    CANDIDATE_COLUMNS,
    best_rows,
    candidate_rows,
    change_text,
    differed_texts,
    twin_rows,
)
from wattloop.study.record import STEPS, is_dead_end, next_step

if TYPE_CHECKING:
    from wattloop.study.spec import StudySpec


UNKNOWN = "-"


def print_step(step: str, found: Mapping[str, Any]) -> None:
    """What came of one step."""
    PRINTED[step](found)


def print_status(spec: "StudySpec", steps: Mapping[str, Any], file: str) -> None:
    """Every step in a line, then the last one in full."""
    print_table(
        ("step", "", "what it says"),
        [
            (f"{number} {step}", "done" if step in steps else UNKNOWN, _brief(step, steps, spec))
            for number, step in enumerate(STEPS, 1)
        ],
        title=f"{spec.name}: {spec.need}",
    )
    print_next(spec.name, steps, file)


def print_next(name: str, steps: Mapping[str, Any], file: str) -> None:
    """The command that goes on."""
    following = next_step(steps)
    if is_dead_end(steps):
        say(
            "wattloop: not all goals are met: back to step 3 with what differed, or other "
            f"candidates or goals in {file}, then: wattloop study baseline {file}"
        )
        return
    if following is None:
        say(f"wattloop: the study is complete; write it up with: wattloop report {quote(name)}")
    else:
        say(f"wattloop: next: wattloop study {following} {file}")


def _brief(step: str, steps: Mapping[str, Any], spec: "StudySpec") -> str:
    found = steps.get(step)
    if step == "objective":
        return "; ".join(f"{kpi.metric} {kpi.goal}" for kpi in spec.kpis)
    if found is None:
        return ""
    if step == "baseline":
        return ", ".join(f"{name} {format_number(value)}" for name, value in found["means"].items())
    if step == "characterize":
        return found["note"] or f"{len(found['best'])} best settings"
    if step == "simulate":
        good = [n for n, c in found["candidates"].items() if all(v["met"] for v in c["verdicts"])]
        return (
            f"{len(found['candidates'])} candidates, all goals met by {', '.join(good) or 'none'}"
        )
    if step == "decide":
        return found["choice"] or "no candidate"
    return "SUCCESS" if found["success"] else "FAIL"


def _print_baseline(found: Mapping[str, Any]) -> None:
    print_table(
        ("figure", "mean"),
        [(name, format_number(value, 5)) for name, value in found["means"].items()],
        title=f"baseline, {found['provenance']}: {found['source']}",
    )
    for symptom in found["symptoms"]:
        say(f"symptom: {symptom}")
    if not found["symptoms"]:
        say("no symptom stands out")


def _print_characterize(found: Mapping[str, Any]) -> None:
    if found["note"]:
        say(f"wattloop: {found['note']}")
    if found["best"]:
        print_table(
            BEST_COLUMNS,
            best_rows(found),
            spare=("of", "how"),
        )


def _print_simulate(found: Mapping[str, Any]) -> None:
    if found["twin"]:
        print_table(
            ("figure", "measured", "simulated", "off", ""),
            twin_rows(found, "", "too far off"),
            title="the twin beside the measured baseline",
        )
    print_table(
        CANDIDATE_COLUMNS,
        candidate_rows(found),
        title=f"simulated, against {found['base']}: {found['source']}",
    )


def _print_decide(found: Mapping[str, Any]) -> None:
    for reason in found["reasons"]:
        say(f"  {reason}")
    say(f"wattloop: decision: {found['choice'] or 'none'}")


def _print_validate(found: Mapping[str, Any]) -> None:
    print_table(
        ("figure", "baseline", found["choice"], "change", "goal", "result"),
        [
            (
                v["metric"],
                format_number(v["before"], 5),
                format_number(v["after"], 5),
                change_text(v),
                v["goal"],
                v["verdict"] + ("" if v["met"] else f" ({v['why']})"),
            )
            for v in found["verdicts"]
        ],
        title=f"validation, {found['provenance']}: {found['source']}",
    )
    for text in differed_texts(found):
        say(f"differed: {text}")


PRINTED = {
    "baseline": _print_baseline,
    "characterize": _print_characterize,
    "simulate": _print_simulate,
    "decide": _print_decide,
    "validate": _print_validate,
}
