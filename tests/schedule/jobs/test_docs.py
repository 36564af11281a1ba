"""Promises of docs/traces.md."""

import re
from pathlib import Path

import yaml

from wattloop.schedule.jobs.spec import JobsSpec, ModelSpec, TraceSpec
from wattloop.schedule.traces.formats import FIELDS, UNITS, known_formats, read_format

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "traces.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_its_examples_are_read(tmp_path) -> None:
    """Two sections, a service, a mapping in a section, and a mapping file."""
    made, served, traced, mapped, mine = BLOCKS
    jobs = JobsSpec(**yaml.safe_load(made)["jobs"])
    assert jobs.models[0].work.bounds() == (2.5e6, 2.5e6) and jobs.models[0].caps[1] == 0.8
    (service,) = yaml.safe_load(served)
    assert ModelSpec(**service).template().kind.service.most_token_s == 0.04
    assert JobsSpec(**yaml.safe_load(traced)["jobs"]).trace.file == "philly_jobs.csv"
    assert TraceSpec(**yaml.safe_load(mapped)["trace"]).columns["arrival"] == "queued_at:ms"
    (tmp_path / "mine.yaml").write_text(
        mine.replace("# layouts", "layouts").replace("  for a", " # ")
    )
    form = read_format(str(tmp_path / "mine.yaml"))
    assert form.separator == ";" and form.layouts[0][0] == "queued_at"


def test_every_format_field_and_unit_is_named() -> None:
    """All shipped formats, and all fields of a section."""
    for name in (*known_formats(), *ModelSpec.model_fields, *FIELDS):
        assert re.search(rf"\b{name}\b", PAGE), name
    for name, info in TraceSpec.model_fields.items():
        assert f"`{info.alias or name}" in PAGE or f"  {name}:" in PAGE, name
    for name in ("arrival", "duration", "gpus", "batch", "steps"):
        line = next(line for line in PAGE.splitlines() if re.match(rf"\| {name}\b.* \| \w+,", line))
        assert re.findall(r"[\w]+(?=[,( ]|$)", line.split("|")[2])[0] == UNITS[name][0]
        assert all(unit in line for unit in UNITS[name])
