"""Promises of YAML files: their lines are known, and a short file cannot expand without limit."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import load_yaml

LISTS = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
MERGES = "x0: &x0 {a: 1}\n" + "".join(
    f"x{n}: &x{n}\n  <<: [*x{n - 1}, *x{n - 1}]\n  k{n}: *x{n - 1}\n" for n in range(1, 40)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LISTS, "aliases"),
        (MERGES, "aliases"),
        ("a: &a\n  - *a\n", "within itself"),
        ("a: " + "[" * 20_000 + "]" * 20_000, "too deeply"),
    ],
    ids=["lists", "merges", "itself", "deep"],
)
def test_a_file_that_grows_by_itself_is_refused(text: str, reason: str) -> None:
    """A kilobyte of nested aliases would need years and all memory."""
    with pytest.raises(ConfigError, match=rf"^x\.yaml: .*{reason}"):
        load_yaml(text, "x.yaml")


def test_aliases_and_merges_are_read() -> None:
    """Ordinary use stays far below the limit."""
    text = "base: &base {gpus: 4, cap: 300 W}\n" + "".join(
        f"n{n}: {{<<: *base, host: {n}}}\n" for n in range(2_000)
    )
    found = load_yaml(text, "x.yaml")
    assert found.data["n1999"] == {"gpus": 4, "cap": "300 W", "host": 1999}
    assert found.line(("n1999", "host")) == 2_001
