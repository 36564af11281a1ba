"""Submitted jobs, and the operator's rules: which jobs train which model.

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
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.yaml_spec import read_yaml
from wattloop.fleet.job_comment import FIELDS, FLAGS, JobComment, with_field
from wattloop.schedule.yaml_model import StrictModel, one_or_many

LONGEST_TEXT = 4_096
"""Longest name or path; longer texts match no pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """Job as submitted to a batch system. All texts come from the user and are not trusted.

    Attributes:
        job_id: identifier in the batch system, for messages.
        name, user, account, partition: as Slurm shows them.
        script: path of the batch script, or the command.
        gpus: requested GPUs, all nodes together; 0 for none.
        gpu_type: requested GPU type; empty for any.
        deadline_s: the batch system's `--deadline`, in seconds after submission.
    """

    job_id: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    script: str = ""
    comment: str = ""
    gpus: int = 0
    gpu_type: str = ""
    time_limit_s: float | None = None
    deadline_s: float | None = None


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
    parts = one_or_many(value)
    if any(isinstance(part, bool) or not isinstance(part, str | int | float) for part in parts):
        raise ValueError(f"{key}: write a number, a word, or a list of them")
    plain = [part if isinstance(part, str) else f"{part:.15g}" for part in parts]
    return "|".join(part.replace(" ", "") for part in plain) if key in FIELDS else ""


Patterns = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=400)]], BeforeValidator(one_or_many)
]


class JobRule(StrictModel):
    """Patterns of a job's attributes, of which one each must match, and the settings of the job."""

    name: Patterns = Field(default_factory=list)
    user: Patterns = Field(default_factory=list)
    account: Patterns = Field(default_factory=list)
    partition: Patterns = Field(default_factory=list)
    script: Patterns = Field(default_factory=list)
    job: Annotated[Any, BeforeValidator(_read_job)]

    def fits(self, job: SubmittedJob) -> bool:
        for attribute in ("name", "user", "account", "partition", "script"):
            patterns, text = getattr(self, attribute), getattr(job, attribute)
            if patterns and (
                len(text) > LONGEST_TEXT or not any(fnmatchcase(text, each) for each in patterns)
            ):
                return False
        return True


class JobRules(StrictModel):
    """Rules in the order of the file, and names of saved workloads."""

    rules: list[JobRule] = Field(default_factory=list)
    workloads: dict[str, str] = Field(default_factory=dict)

    def stated(self, job: SubmittedJob) -> JobComment | None:
        """Return the settings of the first matching rule; None without a match."""
        return next((rule.job for rule in self.rules if rule.fits(job)), None)


def load_rules(name: str) -> JobRules:
    """Load the rules of a YAML file; only saved workloads, which run no code, are accepted.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    source = read_yaml(name)
    rules = JobRules.read(source.data, source, name)
    workloads = {}
    for model, file in rules.workloads.items():
        path = user_path(name).parent / user_path(file)
        where = source.where(("workloads", model))
        if not file.endswith((".json", ".json.gz")):
            raise ConfigError(f"{where}: {file}: write a saved workload, FILE.json or FILE.json.gz")
        if not path.is_file():
            raise ConfigError(f"{where}: {path}: no such file; --save-workload writes one")
        workloads[model] = str(path)
    return rules.model_copy(update={"workloads": workloads})
