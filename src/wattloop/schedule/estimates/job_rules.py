"""Operator's rules: which jobs train which model.

    rules:
      - name: resnet-*
        account: [vision, robots]
        job: {model: resnet-50, batch: 128, samples: 1e6, gpus: [1, 2, 4]}
      - script: "*/finetune_bert.sh"
        job: {model: bert-base-uncased, batch: 32, seq: 384, precision: bf16}
    workloads:
      our-net: workloads/our_net.json.gz

Patterns have `*`, `?` and `[abc]`. Every pattern of a rule must match, and the first rule that
matches counts. `job` has the fields of a comment, with the same bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from wattloop.core.errors import ConfigError
from wattloop.core.paths import user_path
from wattloop.core.yaml_spec import YamlWithLines, format_errors, read_yaml, validation_errors
from wattloop.fleet.job_comment import FIELDS, FLAGS, JobComment, with_field
from wattloop.schedule.estimates.job_estimate import SubmittedJob
from wattloop.schedule.quantities import StrictModel

MATCHED = ("name", "user", "account", "partition", "script")
"""Attributes of a job that patterns can match."""
LONGEST_TEXT = 4_096
"""Longest name or path; longer texts match no pattern."""


@dataclass(frozen=True, slots=True)
class JobRule:
    """Rule with patterns and the settings of matching jobs.

    Attributes:
        patterns: attribute of a job -> patterns, of which one must match.
        stated: settings of matching jobs.
    """

    patterns: Mapping[str, tuple[str, ...]]
    stated: JobComment

    def fits(self, job: SubmittedJob) -> bool:
        """Return True if the rule matches a job."""
        return all(_fits(getattr(job, of), patterns) for of, patterns in self.patterns.items())


@dataclass(frozen=True, slots=True)
class JobRules:
    """Rules in the order of the file.

    Attributes:
        rules: the first match counts.
        workloads: name -> file of a saved workload.
    """

    rules: tuple[JobRule, ...] = ()
    workloads: Mapping[str, str] = field(default_factory=dict)

    def stated(self, job: SubmittedJob) -> JobComment | None:
        """Return the settings of the first matching rule; None without a match."""
        return next((rule.stated for rule in self.rules if rule.fits(job)), None)


def load_rules(name: str) -> JobRules:
    """Load the rules of a YAML file.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    source = read_yaml(name)
    try:
        spec = _RulesSpec.model_validate(source.data)
    except ValidationError as error:
        raise ConfigError(
            format_errors(validation_errors(error, _RulesSpec), source, otherwise=name)
        ) from None
    folder = user_path(name).parent
    return JobRules(
        tuple(each.rule() for each in spec.rules), _located(spec.workloads, folder, source)
    )


def _fits(text: str, patterns: tuple[str, ...]) -> bool:
    return len(text) <= LONGEST_TEXT and any(fnmatchcase(text, each) for each in patterns)


def _located(files: Mapping[str, str], folder: Path, source: YamlWithLines) -> dict[str, str]:
    """Resolve paths relative to the rules file; only saved workloads, which run no code."""
    found = {}
    for name, file in files.items():
        path = folder / user_path(file)
        where = source.where(("workloads", name))
        if not file.endswith((".json", ".json.gz")):
            raise ConfigError(f"{where}: {file}: write a saved workload, FILE.json or FILE.json.gz")
        if not path.is_file():
            raise ConfigError(f"{where}: {path}: no such file; --save-workload writes one")
        found[name] = str(path)
    return found


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _read_job(value: Any) -> JobComment:
    """Parse `job` with the parser of comments, so that the bounds are the same."""
    if not isinstance(value, Mapping):
        raise ValueError("write fields such as {model: resnet-50, batch: 128}")
    stated = JobComment()
    for key, given in value.items():
        if key in FLAGS:
            if not isinstance(given, bool):
                raise ValueError(f"{key}: write true or false")
            stated = with_field(stated, key, None) if given else stated
        else:
            stated = with_field(stated, str(key), _text(str(key), given))
    if not stated.model:
        raise ValueError("has no model; a rule must name one")
    return stated


def _text(key: str, value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    if any(isinstance(part, bool) or not isinstance(part, str | int | float) for part in parts):
        raise ValueError(f"{key}: write a number, a word, or a list of them")
    plain = [part if isinstance(part, str) else f"{part:.15g}" for part in parts]
    return "|".join(part.replace(" ", "") for part in plain) if key in FIELDS else ""


Patterns = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=400)]], BeforeValidator(_one_or_many)
]


class _RuleSpec(StrictModel):
    name: Patterns = Field(default_factory=list)
    user: Patterns = Field(default_factory=list)
    account: Patterns = Field(default_factory=list)
    partition: Patterns = Field(default_factory=list)
    script: Patterns = Field(default_factory=list)
    job: Annotated[Any, BeforeValidator(_read_job)]

    def rule(self) -> JobRule:
        patterns = {of: tuple(getattr(self, of)) for of in MATCHED if getattr(self, of)}
        return JobRule(patterns, self.job)


class _RulesSpec(StrictModel):
    rules: list[_RuleSpec] = Field(default_factory=list)
    workloads: dict[str, str] = Field(default_factory=dict)
