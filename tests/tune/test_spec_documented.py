"""Promise of docs/tune-spec.md: it has every field there is, and none that is not."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from wattloop.tune.objective import OBJECTIVES
from wattloop.tune.spec import ARGUMENTS, FOREIGN, SearchSpec, spec_from
from wattloop.tune.spec_sections import (
    DISTRIBUTIONS,
    CapSpec,
    EarlyTerminate,
    HardwareSpec,
    MetricSpec,
    ObjectiveSpec,
    ParameterSpec,
    SearchLimitsSpec,
)
from wattloop.tune.strategies import STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "tune-spec.md").read_text(encoding="utf-8")


def tables(section: str) -> list[list[list[str]]]:
    """The tables of a section: rows of cells, the heading first."""
    body = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^\|.*\|\n)+", body, re.MULTILINE)
    rows = [[line.strip("| ").split(" | ") for line in table.splitlines()] for table in found]
    return [[row for row in table if not set(row[0]) <= set("-| ")] for table in rows]


def named(section: str, number: int = 0) -> set[str]:
    """Return the names in the first column of a table."""
    return {row[0].strip("` ") for row in tables(section)[number][1:]}


def written(model: type[BaseModel]) -> set[str]:
    """Names under which people write the fields of a model."""
    fields = model.model_fields.items()
    return {info.serialization_alias or info.alias or name for name, info in fields}


@pytest.mark.parametrize(
    ("section", "number", "model", "more"),
    [
        ("Fields", 0, SearchSpec, {"method"}),
        ("Metric", 0, MetricSpec, set()),
        ("Parameters", 0, ParameterSpec, set()),
        ("Hardware", 0, HardwareSpec, set()),
        ("Hardware", 1, CapSpec, set()),
        ("Objective", 1, ObjectiveSpec, set()),
        ("Limits", 0, SearchLimitsSpec, set()),
        ("Early stopping", 0, EarlyTerminate, set()),
    ],
)
def test_every_field_is_documented(
    section: str, number: int, model: type[BaseModel], more: set[str]
) -> None:
    """A table per section, with the names that people write."""
    assert named(section, number) == written(model) | more


def test_every_name_is_documented() -> None:
    """Distributions, objectives, strategies, macros, and what of W&B is only noted."""
    assert named("Parameters", 1) == set(DISTRIBUTIONS)
    assert named("Objective", 0) == set(OBJECTIVES)
    assert named("Strategies") == set(STRATEGIES)
    assert all(f"`{name}`" in PAGE for name in FOREIGN)
    assert all(f"`${{{name}}}`" in PAGE for name in ARGUMENTS)


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"race", "sm2"}))
def test_every_option_of_a_strategy_is_documented(name: str) -> None:
    """The keywords of its class; those of race and sm2 are on the page of tune."""
    module, _, attribute = STRATEGIES[name].partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    parameters = inspect.signature(kind.__init__).parameters.values()
    keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    row = next(row for row in tables("Strategies")[0] if row[0].strip("` ") == name)
    assert set(re.findall(r"`(\w+)`", row[-1] if len(row) > 2 else "")) == keywords


def test_the_example_is_a_specification() -> None:
    """As it stands on the page."""
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for text in example:
        assert spec_from(yaml.safe_load(text)).problem().space.varied
