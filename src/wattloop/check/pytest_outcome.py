"""What a test asked for, and what is said of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wattloop.check.baselines import Baselines, NotComparable
from wattloop.check.comparison import compared
from wattloop.check.figures import JUDGED_FIRST, Kind, Series, format_figure, judged_kind
from wattloop.check.limits import Limit, limit, share
from wattloop.check.machine import Machine
from wattloop.check.verdict import against_limit, mean_and_noise
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_change

__all__ = ["Outcome", "Wishes", "judged_baseline", "judged_limits"]

MARK_WORDS = {"below", "baseline", "repeats", "tolerance"}
BAD = ("above", "regression")


@dataclass(frozen=True, slots=True)
class Wishes:
    """The mark and the options of one test."""

    name: str
    file: Path
    below: tuple[Limit, ...] = ()
    baseline: bool = False
    repeats: int = 1
    tolerance: float = 0.05
    update: bool = False
    strict: bool = False

    @classmethod
    def of(cls, item: Any) -> "Wishes":
        """Those of a test of pytest.

        Raises:
            ConfigError: the mark has words that are not known, or a wrong value.
        """
        mark = item.get_closest_marker("energy")
        given = {} if mark is None else dict(mark.kwargs)
        strange = [*map(repr, () if mark is None else mark.args), *(given.keys() - MARK_WORDS)]
        if strange:
            raise ConfigError(
                f"the mark energy does not take {strange[0]}; it takes {', '.join(MARK_WORDS)}"
            )
        repeats = given.get("repeats", 1)
        if not isinstance(repeats, int) or not 1 <= repeats <= 1_000:
            raise ConfigError(f"the mark energy: repeats={repeats!r} is not a number from 1 on")
        below = given.get("below") or ()
        option = item.config.getoption("--energy-tolerance")
        tolerance = given.get("tolerance") or option or item.config.getini("energy_tolerance")
        return cls(
            name=f"{item.path.name}::{item.nodeid.partition('::')[2]}",
            file=item.path.parent / item.config.getini("energy_baselines"),
            below=tuple(map(limit, (below,) if isinstance(below, str) else below)),
            baseline=bool(given.get("baseline", False)),
            repeats=repeats,
            tolerance=share(tolerance, "tolerance"),
            update=item.config.getoption("--energy-update"),
            strict=item.config.getoption("--energy-strict"),
        )


@dataclass(slots=True)
class Outcome:
    """One line of the summary.

    Attributes:
        verdict: `below`, `above`, `same`, `unclear`, `improved`, `regression`, `new` (no
            baseline yet), `taken` (now the baseline), `not judged`, `measured` (nothing was asked).
        against: the limit or baseline, for people.
        series: every figure, for the baselines file; empty unless it is to be taken.
    """

    name: str
    file: str
    kind: Kind
    value: float
    noise: float
    repeats: int
    provenance: str
    verdict: str = "measured"
    against: str = ""
    notes: list[str] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    figures: dict[Kind, Series] = field(default_factory=dict, repr=False)

    @property
    def bad(self) -> bool:
        """Whether the test is to fail."""
        return self.verdict in BAD

    @property
    def shown(self) -> str:
        """The figure for people."""
        noise = f" ± {format_figure(self.kind, self.noise)}" if self.noise else ""
        return f"{format_figure(self.kind, self.value)}{noise}"

    @property
    def sentence(self) -> str:
        """What a failing test says."""
        against = f"; {self.against}" if self.against else ""
        notes = "".join(f"; {note}" for note in self.notes)
        times = f", mean of {self.repeats}" if self.repeats > 1 else ""
        figure = f"{self.kind.words} {self.shown} ({self.provenance}{times})"
        return f"{self.verdict}: {figure}{against}{notes}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which xdist can carry."""
        data = asdict(self)
        del data["figures"]
        return {**data, "kind": self.kind.value, "shown": self.shown}


def judged_limits(
    wishes: Wishes, now: dict[Kind, Series], limits: Sequence[Limit], reason: str
) -> Outcome:
    """Hold the figures against the limit of the kind that says most, of those given."""
    order = {kind: place for place, kind in enumerate(JUDGED_FIRST)}
    usable = sorted((one for one in limits if one.kind in now), key=lambda one: order[one.kind])
    kind = usable[0].kind if usable else judged_kind(now)
    assert kind is not None  # CPU time is always there
    mean, noise = mean_and_noise(now[kind])
    series = now[kind]
    found = Outcome(
        name=wishes.name,
        file=str(wishes.file),
        kind=kind,
        value=mean,
        noise=noise,
        repeats=len(series.values),
        provenance=series.provenance,
        figures=now,
    )
    if kind is not Kind.ENERGY and reason:
        found.notes.append(reason)
    if usable:
        holds, note = against_limit(series, usable[0].value)
        found.verdict = "below" if holds else "above"
        found.against = f"limit {usable[0]}"
        found.notes += [note] if note else []
    elif limits:
        found.verdict = "not judged"
        found.against = f"limit {limits[0]}"
        found.notes.append(f"give a limit in {kind.unit} as well to judge it here")
    return found


def judged_baseline(found: Outcome, wishes: Wishes) -> None:
    """Hold the figures against the baseline, or have them taken as such.

    Raises:
        ConfigError: the file is damaged, or of a newer version.
    """
    if wishes.update:
        found.verdict = "taken"
        found.series = {kind.value: one.to_dict() for kind, one in found.figures.items()}
        return
    known = Baselines.read_if_any(wishes.file)
    if wishes.name not in known.entries:
        found.verdict = "new"
        found.notes.append("no baseline yet; take it with --energy-update")
        return
    machine = Machine.here()
    kind = judged_kind(found.figures)
    assert kind is not None
    try:
        comparison = compared(
            wishes.name,
            known.find(wishes.name, machine),
            found.figures,
            kind,
            machine=machine,
            tolerance=wishes.tolerance,
        )
    except NotComparable as error:
        found.verdict = "not judged"
        said = str(error).partition(", or choose --figure")[0]
        found.notes.append(said.replace("--update", "--energy-update"))
        return
    one = comparison.judged
    change = "" if one.change is None else format_change(one.change)
    noise = "" if one.noise is None else f" ±{one.noise:.1%}"
    found.kind = kind
    found.value, found.noise = mean_and_noise(found.figures[kind])
    found.verdict = one.verdict.value
    found.against = f"baseline {format_figure(kind, one.before)}" + (
        f" ({change}{noise})" if change else ""
    )
    found.notes += [*comparison.notes, *one.notes]
