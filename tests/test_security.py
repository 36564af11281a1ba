"""Promises of SECURITY.md, constraints.txt and `make audit`: existing tests, and valid pins."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "constraints.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.]+)")


def pins() -> dict[str, Version]:
    lines = [line for line in LOCK.splitlines() if line and not line.startswith("#")]
    found = [PIN.fullmatch(line) for line in lines]
    assert all(found), [line for line, pin in zip(lines, found, strict=True) if pin is None]
    return {canonicalize_name(pin[1]): Version(pin[2]) for pin in found if pin}


def wanted() -> list[Requirement]:
    """Return the packages that make, CI and the image install."""
    extras = re.search(r"^EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert extras is not None
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"]]
    lines += [line for extra in extras[1].split(",") for line in optional[extra]]
    dev = (ROOT / "requirements-dev.txt").read_text().splitlines()
    lines += [line.partition("  #")[0] for line in dev if line and not line.startswith("#")]
    return [Requirement(line) for line in lines]


def test_every_promise_names_a_test_that_exists() -> None:
    """A renamed or deleted test would leave a promise without a test."""
    page = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)", text))
    assert len(named) > 20
    assert named <= there, named - there


def test_every_package_that_is_installed_is_pinned_within_its_range() -> None:
    """So make, CI and the image install the same versions at any time."""
    pinned = pins()
    for requirement in wanted():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name}: run 'make lock'"
        assert requirement.specifier.contains(pinned[name], prereleases=True), requirement
    assert len(pinned) > 100, "also what those need"


def test_lock_names_releases_only() -> None:
    """No address of a registry, no local build (2.13.0+cpu), no hash of a single file."""
    assert pins()["torch"] == Version("2.13.0")
    assert all(version.local is None for version in pins().values())
    assert "://" not in LOCK
    assert "--" not in LOCK.replace("--constraint", "")


def test_make_and_the_image_use_the_lock() -> None:
    """CI runs make."""
    assert "--constraint constraints.txt" in (ROOT / "Makefile").read_text()
    image = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^COPY .*constraints\.txt", image, re.M)
    assert "--constraint constraints.txt" in image
    run = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^make .*static\b", run, re.M) and re.search(r"^make test$", run, re.M)


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_audit_without_a_service_does_not_look_clean(tmp_path: Path) -> None:
    """pip-audit itself ends with 0 where it could not check any package."""
    lock = tmp_path / "lock.txt"
    lock.write_text("requests==2.19.0\n")
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    lower = {name.lower(): place for name, place in nowhere.items()}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "audit.py"), str(lock)],
        env={**os.environ, **nowhere, **lower, "NO_PROXY": "", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "NOTHING WAS CHECKED" in done.stdout, done.stderr
    assert done.returncode == 2


ANSWER = """[
  {"name": "good", "version": "1.0", "vulns": []},
  {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]},
  {"name": "odd", "skip_reason": "Dependency not found on PyPI"}
]"""


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        (("good",), 0, "1 packages were checked: no vulnerability is known"),
        (("good", "bad"), 1, "bad 2.0: PYSEC-1, fixed in 2.1"),
        (("good", "odd"), 2, "1 packages were not checked: odd"),
        (("odd",), 2, "NOTHING WAS CHECKED"),
        ((), 2, "NOTHING WAS CHECKED"),
    ],
)
def test_audit_names_the_state_of_each_package(
    audit: ModuleType, packages: tuple[str, ...], code: int, said: str
) -> None:
    """Each package is clean, vulnerable or unknown; unknown is not clean."""
    answer = [one for one in json.loads(ANSWER) if one["name"] in packages]
    lines, found = audit.verdict(answer, [])
    assert found == code
    assert said in "\n".join(lines)
