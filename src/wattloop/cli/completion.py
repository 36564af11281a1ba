"""Shell completion of names: runs, experiments, models, GPUs, scenarios and policies.

A shell asks at every press of TAB, so that nothing heavy is imported and no store is changed: names
of runs are read from a SQLite store as it is. A store on a server is not asked.
"""

import io
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import closing, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import typer

from wattloop.core.errors import WattloopError
from wattloop.core.settings import STORE

Items = list[str | tuple[str, str]]
"""Values, or values with what a shell shows next to them."""
Complete = Callable[[typer.Context, str], Items]
MOST = 200
PLAIN = re.compile(r"[\w.:/@+-]+")
"""Names that no shell takes apart."""


def complete_runs(ctx: typer.Context, incomplete: str) -> Items:
    """Complete names and identifiers of stored runs, the newest first."""
    query = "select run_id, name from runs order by started_wall_s desc limit ?"
    return _references(ctx, incomplete, query, ())


def complete_sweeps(ctx: typer.Context, incomplete: str) -> Items:
    return _experiments(ctx, incomplete, "sweep")


def complete_searches(ctx: typer.Context, incomplete: str) -> Items:
    return _experiments(ctx, incomplete, "search")


def complete_campaigns(ctx: typer.Context, incomplete: str) -> Items:
    return _experiments(ctx, incomplete, "campaign")


def complete_tables(ctx: typer.Context, incomplete: str) -> Items:
    """Complete searches and sweeps, which `analyze` reads."""
    return _experiments(ctx, incomplete, "search", "sweep")


def complete_models(ctx: typer.Context, incomplete: str) -> Items:
    """Complete `hf:NAME` of the architectures that are known without a file."""
    from wattloop.predict.sources.huggingface import architecture_names

    return _matching((f"hf:{name}" for name in architecture_names()), incomplete)


def complete_gpus(ctx: typer.Context, incomplete: str) -> Items:
    """Complete a GPU, or the last of a list such as `a100,h1`."""
    from wattloop.hardware.gpus import known_gpus

    return _in_list((gpu.name for gpu in known_gpus()), incomplete)


def complete_scenarios(ctx: typer.Context, incomplete: str) -> Items:
    """Complete the scenarios that come with Wattloop, by their files."""
    import wattloop

    folder = Path(wattloop.__file__).parent / "schedule" / "scenarios" / "shipped"
    return _matching(sorted(path.stem for path in folder.glob("*.yaml")), incomplete)


def complete_policies(ctx: typer.Context, incomplete: str) -> Items:
    """Complete a policy, or the last of a list such as `fifo,ze`."""
    from wattloop.schedule.policies.registry import POLICIES

    return _in_list(POLICIES, incomplete)


def complete_live(ctx: typer.Context, incomplete: str) -> Items:
    """Complete identifiers of runs that have a journal: those being measured now are among them."""
    place = _store_path(ctx)
    journals = [] if place is None else place.parent.glob(f"{place.name}.journals/*.journal")
    return _matching(sorted((path.stem for path in journals), reverse=True), incomplete)


COMPLETED: dict[str, Complete] = {
    "RUN": complete_runs,
    "LIVE_RUN": complete_live,
    "SWEEP": complete_sweeps,
    "SEARCH": complete_searches,
    "CAMPAIGN": complete_campaigns,
    "RUN|SWEEP|SEARCH|CAMPAIGN|STUDY": complete_runs,
    "SEARCH|SWEEP|FILE.csv": complete_tables,
    "SCENARIO": complete_scenarios,
    "--model MODEL": complete_models,
    "--gpu NAME": complete_gpus,
    "--compare GPUS": complete_gpus,
    "--policies LIST": complete_policies,
    "--policy POLICY": complete_policies,
}
"""Argument by its placeholder, or option with its placeholder -> what completes it."""


@contextmanager
def bash_words_joined(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Join words that bash takes apart at colons, `hf : gpt2`, as the user wrote them.

    Bash replaces only what follows the last colon, so that the answer is without what stands
    before it.
    """
    words, number = environment.get("COMP_WORDS", "").split("\n"), environment.get("COMP_CWORD")
    if ":" not in words:
        yield
        return
    joined: list[str] = []
    for word in words[: int(number or 0) + 1]:
        if joined and (word == ":" or joined[-1].endswith(":")):
            joined[-1] += word
        else:
            joined.append(word)
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
    before = joined[-1][: joined[-1].rfind(":") + 1]
    answer = io.StringIO()
    try:
        with redirect_stdout(answer):
            yield
    finally:
        lines = answer.getvalue().splitlines()
        sys.stdout.write("".join(f"{line.removeprefix(before)}\n" for line in lines))


def _experiments(ctx: typer.Context, incomplete: str, *kinds: str) -> Items:
    """Complete names and identifiers of experiments of these kinds, the newest first."""
    marks = ",".join("?" * len(kinds))
    query = (
        f"select experiment_id, name from experiments where kind in ({marks}) "
        "order by created_wall_s desc limit ?"
    )
    return _references(ctx, incomplete, query, kinds)


def _references(ctx: typer.Context, incomplete: str, query: str, values: Iterable[Any]) -> Items:
    rows = _stored(ctx, query, (*values, MOST))
    named = dict.fromkeys(name for _, name in rows if name and PLAIN.fullmatch(name))
    found = _matching([*(["last"] if rows else []), *named], incomplete)
    # identifiers all begin alike: they are of use once the first digits are there
    ids: Items = [(i, name) for i, name in rows if incomplete and i.startswith(incomplete)]
    return [*found, *ids]


def _stored(ctx: typer.Context, query: str, values: tuple[Any, ...]) -> list[tuple[str, str]]:
    """Return rows of the user's store; none where it cannot be read as it is."""
    path = _store_path(ctx)
    if path is None or not path.is_file():
        return []
    with suppress(sqlite3.Error):
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=0.2)) as connection:
            return [(str(a), str(b or "")) for a, b in connection.execute(query, values)]
    return []


def _store_path(ctx: typer.Context) -> Path | None:
    from wattloop.cli.options import settings_of
    from wattloop.store.location import StoreLocation

    with suppress(WattloopError, OSError):
        store, config = (ctx.params.get(name) for name in ("store", "config"))
        location = settings_of(config, needs=STORE, store=store).store_location
        return None if location.startswith("postgres") else StoreLocation.parse(location).path
    return None


def _matching(names: Iterable[str], incomplete: str) -> Items:
    return [name for name in names if name.startswith(incomplete)]


def _in_list(names: Iterable[str], incomplete: str) -> Items:
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{n}" for n in names if n.startswith(last) and n not in given]
