"""`wattloop card`: write the energy card of a model."""

import shlex
from typing import TYPE_CHECKING

from wattloop.cli.app import Verb
from wattloop.cli.options import (
    Config,
    JsonFile,
    Meters,
    StorePlace,
    Zone,
    argument,
    option,
    settings_of,
)
from wattloop.cli.output import check_target, say, write_json, write_text
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings

if TYPE_CHECKING:
    from wattloop.accounting.carbon import IntensitySearch
    from wattloop.report.card import Inference
    from wattloop.store.database import Store
    from wattloop.store.runs import RunRecord


app = Verb()
LOOK_BACK = 100


@app.command(
    example="wattloop card last --inference 'python infer.py --count {n}' "
    "--inferences 1000 -o resnet50"
)
def card(  # noqa: PLR0913 - one parameter per option
    run: str = argument("RUN", "The training: identifier, its beginning, or 'last'.", "last"),
    *,
    inference: str | None = option(
        "--inference CMD", "A command that does {n} inferences; it is run."
    ),
    inferences: int = option("--inferences", "How many inferences the command does.", 100, min=1),
    output: str | None = option("--output -o NAME", "NAME.svg, NAME.md and NAME.json."),
    model: str = option("--model", "What the model is called (the name of the run).", ""),
    renewable: str | None = option("--renewable SHARE", "Renewable share of the electricity."),
    formats: list[str] | None = option(
        "--format NAME", "Also NAME.hf.md, .boamps.json, .ai-act.md or .jsonld; repeat."
    ),
    state: list[str] | None = option(
        "--state KEY=VALUE", "What a run cannot know, such as parameters=8B; repeat."
    ),
    json_file: JsonFile = None,
    zone: Zone = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Write the energy card of a model as SVG, Markdown and JSON.

    Training energy and time, cost of a step, phases, hardware, energy and latency of an inference,
    carbon; each with where it comes from. `--format` adds a file for Hugging Face (hf), a BoAmps
    report (boamps), Annex XI of the EU AI Act (ai-act) or schema.org (json-ld).
    """
    from wattloop.cli.commands.run.execution import keep
    from wattloop.cli.stored import open_user_store
    from wattloop.integrations.stored_steps import read_step_totals
    from wattloop.report.card import card_markdown, card_of, card_svg
    from wattloop.report.card_standards import FORMATS, parse_statements
    from wattloop.store.runs import find_run

    settings = settings_of(config, zone=zone, meters=meters, store=store)
    share = _share(renewable)
    stated = parse_statements(state or [])
    for name in formats or ():
        if name not in FORMATS:
            raise ConfigError(f"--format {name}: unknown; use {', '.join(FORMATS)}")
    with open_user_store(store, config) as place:
        record = find_run(place, run, by_name=True) if run != "last" else _last_training(place)
        totals = read_step_totals(place, record)
    stem = output or f"card-{record.run_id}"
    for ending in ("svg", "md", "json"):
        check_target(f"{stem}.{ending}", "--output")
    measured = _measured(inference, inferences, settings)
    if measured is not None:
        keep(settings)
    intensity = _intensity(record, settings)
    made = card_of(record, measured, intensity, model=model, renewable_share=share, totals=totals)
    write_text(card_svg(made), f"{stem}.svg", "--output")
    write_text(card_markdown(made), f"{stem}.md", "--output")
    write_json(made.to_dict(), f"{stem}.json", "--output")
    write_json(made.to_dict(), json_file)
    files = [f"{stem}.svg", f"{stem}.md", f"{stem}.json"]
    for name in formats or ():
        files.append(f"{stem}.{FORMATS[name].ending}")
        write_text(FORMATS[name].render(made, stated), files[-1], "--output")
    say(f"wattloop: energy card of {made.model}: {', '.join(files)}")
    for note in made.notes:
        say(f"wattloop: {note}")


def _last_training(store: "Store") -> "RunRecord":
    """Return the last run of the user; runs of inferences are stored as well."""
    from wattloop.store.runs import find_run, list_runs

    recent = (record for record in list_runs(store, limit=LOOK_BACK) if "card" not in record.tags)
    return next(recent, None) or find_run(store, "last")


def _measured(command: str | None, inferences: int, settings: "Settings") -> "Inference | None":
    if command is None:
        return None
    from wattloop.report.card import measured_inference

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--inference {command}: {error}") from None
    if not words:
        raise ConfigError("--inference: no command; write it in quotes")
    return measured_inference(
        words, inferences, settings, told=lambda text: say(f"wattloop: measuring {text}")
    )


def _intensity(record: "RunRecord", settings: "Settings") -> "IntensitySearch":
    """Return the run's carbon intensity, or the configured one; live providers know only now."""
    from wattloop.accounting.carbon import Intensity, IntensityKind, IntensitySearch, find_intensity

    kept = (record.accounting or {}).get("carbon_intensity")
    if kept:
        return IntensitySearch(Intensity(**{**kept, "kind": IntensityKind(kept["kind"])}))
    begin_s = record.started_wall_s
    return find_intensity(
        settings._replace(carbon_url=""), begin_s, begin_s + (record.duration_s or 0.0)
    )


def _share(text: str | None) -> float | None:
    from wattloop.check.figures import parse_share

    if text is None:
        return None
    found = 1.0 if text.strip() in ("1", "1.0") else parse_share(text, "--renewable")
    if found > 1:
        raise ConfigError(f"--renewable {text}: at most 100%")
    return found
