"""`wattloop fleet`: health of nodes, tokens of nodes and readers, retention of old data."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import Config, JsonFile, StorePlace, argument, option, settings_of
from wattloop.cli.output import UNKNOWN, print_rows, say, write_json
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_bytes, format_duration, format_power, short_energy

if TYPE_CHECKING:
    from wattloop.store.retention import Retention


app = Verb("Show what is wrong on nodes; manage tokens; delete old data.")
tokens = Verb("Manage the tokens that may read or write at a server.")


app.add_typer(tokens, name="tokens")


TokensFile = Annotated[
    str,
    option(
        "--file FILE",
        "File of tokens that 'wattloop serve --tokens' reads.",
        envvar="WATTLOOP_TOKENS",
    ),
]


@tokens.command("add", example="wattloop fleet tokens add --file tokens.json --node n1 -o secrets")
def add(
    *,
    file: TokensFile,
    role: str = option("--role", "node, reader, writer or scheduler.", "node"),
    node: list[str] | None = option("--node", "Node that it is for; may be given several times."),
    name: str | None = option("--name", "What to call it (default: the node)."),
    out: str | None = option("--out -o DIR", "Write each secret to DIR/NAME.token, for its owner."),
    json: JsonFile = None,
) -> None:
    """Create a token; its secret is shown once, the file holds only its hash."""
    from wattloop.fleet.tokens import Role, add_token

    try:
        wanted = Role(role)
    except ValueError:
        raise ConfigError(f"--role {role}: choose node, reader, writer or scheduler") from None
    nodes = node or [""]
    if name is not None and len(nodes) > 1:
        raise ConfigError("--name: give it with one --node; several are called as they are")
    if name is None and not nodes[0]:
        raise ConfigError("--name: what shall it be called?")
    folder = None if out is None else _folder(out)
    made = {}
    for one in nodes:
        called = name or one
        made[called] = add_token(user_path(file), called, wanted, one)
        if folder is not None:
            _keep_secret(folder / f"{called}.token", made[called])
    if json is not None:
        write_json([{"name": n, "role": role, "token": t} for n, t in made.items()], json)
    elif folder is not None:
        what = "secret is" if len(made) == 1 else "secrets are"
        say(f"wattloop: {len(made)} {what} in {folder}; each is for its owner only")
    else:
        print_rows(("name", "token"), made.items())


@tokens.command("list", example="wattloop fleet tokens list --file tokens.json")
def list_(*, file: TokensFile, json: JsonFile = None) -> None:
    """List names, roles and nodes of tokens; secrets are not stored."""
    from wattloop.fleet.tokens import list_tokens

    found = list_tokens(user_path(file))
    if json is not None:
        keys = ("name", "role", "node", "created")
        write_json([{key: getattr(token, key) for key in keys} for token in found], json)
        return
    rows = [(t.name, t.role.value, t.node or "–", t.created or "–") for t in found]
    print_rows(("name", "role", "node", "made"), rows)


@tokens.command("revoke", example="wattloop fleet tokens revoke n1 --file tokens.json")
def revoke(
    name: str = argument(None, "What it is called."), *, file: TokensFile, json: JsonFile = None
) -> None:
    """Revoke a token; a running server refuses it within a second."""
    from wattloop.fleet.tokens import revoke_token

    gone = revoke_token(user_path(file), name)
    write_json({"name": gone.name, "role": gone.role.value, "node": gone.node}, json)
    say(f"wattloop: token {gone.name} is revoked")


@app.command("nodes", example="wattloop fleet nodes\nwattloop fleet nodes node7")
def nodes(node: str = argument("NODE", "Only this one.", ""), *, given: StoreOptions) -> None:
    """Show what is wrong on each node: silence, faults, sensors that are not read, failed runs.

    The server stores what agents say every few seconds; runs are read from the same store.
    """
    from wattloop.fleet.nodes import node_health

    with given.open_store() as place:
        known = node_health(place)
    found = [one for one in known if node in ("", one.node)]
    if not found:
        names = ", ".join(one.node for one in known) or "none"
        raise ConfigError(f"node {node}: not known here; known: {names}")

    def quiet(age_s: float | None) -> str:
        return "well" if age_s is not None else "well, by its runs"

    def print_nodes() -> None:
        rows = [
            (
                one.node,
                f"{len(one.faults)} to look at" if one.faults else quiet(one.age_s),
                UNKNOWN if one.power_w is None else format_power(one.power_w),
                UNKNOWN if one.age_s is None else f"{format_duration(one.age_s)} ago",
                _day(one.last_run_wall_s),
                str(one.runs),
                UNKNOWN if not one.energy_j else short_energy(one.energy_j),
            )
            for one in found
        ]
        heads = ("node", "state", "power", "heard", "last run", "runs, 7 d", "energy, 7 d")
        print_rows(heads, rows, spare=heads[:3:-1])
        for one in found:
            for fault in one.faults:
                say(f"{one.node}: {fault}")

    given.present(lambda: {"nodes": [one.to_dict() for one in found]}, print_nodes)


def _day(wall_s: float | None) -> str:
    return UNKNOWN if wall_s is None else f"{datetime.fromtimestamp(wall_s):%m-%d %H:%M}"


@app.command("retain", example="wattloop fleet retain --samples 30d --dry-run")
def retain(
    *,
    samples: str | None = option("--samples", "Age at which single samples go; 30d, 1y, forever."),
    levels: str | None = option("--levels", "Age at which curves go."),
    runs: str | None = option("--runs", "Age at which whole runs go."),
    dry_run: bool = option("--dry-run", "Only say what would go."),
    store: StorePlace = None,
    config: Config = None,
    json: JsonFile = None,
) -> None:
    """Delete old data; energies of remaining runs do not change. Ctrl-C stops it safely.

    Without ages, those of the setting `retain` count.
    """
    from wattloop.cli.stored import open_user_store
    from wattloop.store.retention import Dropped, apply_retention, retention_from

    policy = _asked({"samples": samples, "levels": levels, "runs": runs})
    if policy is None:
        policy = retention_from(settings_of(config, needs=("retain",)))
    if policy is None:
        raise ConfigError(
            "retain: nothing says what is too old; give --samples 30d, or write "
            "'retain: samples=30d,levels=1y,runs=forever' into wattloop.yaml"
        )
    last = Dropped()

    def told(done: Dropped) -> None:
        nonlocal last
        if done.samples + done.levels + done.runs >= 1_000 + (
            last.samples + last.levels + last.runs
        ):
            last = done
            say(f"wattloop: {done.samples + done.levels + done.runs} runs so far")

    with open_user_store(store, config) as place:
        found = apply_retention(place, policy, dry_run=dry_run, report=told)
    if json is not None:
        keys = ("samples", "levels", "runs", "payload_b")
        write_json({"dry_run": dry_run, **{key: getattr(found, key) for key in keys}}, json)
        return
    would = "would lose" if dry_run else "lost"
    say(
        f"wattloop: {found.samples} runs {would} their samples, {found.levels} their curves; "
        f"{found.runs} runs {'would go' if dry_run else 'went'}; {format_bytes(found.payload_b)}"
    )


def _asked(ages: Mapping[str, str | None]) -> "Retention | None":
    """Return the retention limits that the options give; None without any."""
    from wattloop.store.retention import Retention, parse_age

    found_s = {}
    for name, age in ages.items():
        if age is not None:
            try:
                found_s[f"{name}_s"] = parse_age(age)
            except ConfigError as error:
                raise ConfigError(f"--{name}: {error}") from None
    if not found_s:
        return None
    try:
        return Retention(**found_s)
    except ConfigError as error:
        given = " ".join(f"--{name} {age}" for name, age in ages.items() if age is not None)
        raise ConfigError(f"{given}: {error}") from None


def _folder(text: str) -> Path:
    folder = user_path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"--out {text}: {error.strerror}") from None
    return folder


def _keep_secret(path: Path, secret: str) -> None:
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(secret + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; revoke the token and try again") from None
