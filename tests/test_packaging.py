"""Promises of the package: a wheel has every data file, and messages name existing extras."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from tests.conftest import LONGEST_FIRST

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_data_file_is_in_the_wheel() -> None:
    """Templates, tables and scripts next to the code match a pattern of the package's data."""
    package = ROOT / "src" / "wattloop"
    stated = PROJECT["tool"]["setuptools"]["package-data"]["wattloop"]
    patterns = [each.removeprefix("**/") for each in stated]
    left_out = [
        str(each.relative_to(package))
        for each in package.rglob("*")
        if each.is_file()
        and each.suffix not in (".py", ".pyc")
        and not any(fnmatch(each.name, pattern) for pattern in patterns)
    ]
    assert left_out == []


def test_every_extra_that_is_named_exists() -> None:
    """`pip install 'wattloop[EXTRA]'`, as in messages and pages, installs an existing extra."""
    extras = set(PROJECT["project"]["optional-dependencies"])
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        name
        for page in pages
        for group in re.findall(r"wattloop\[([a-z,]+)\]", page.read_text("utf-8"))
        for name in group.split(",")
    }
    assert {"torch", "report", "serve"} <= named
    assert named - {"extra"} <= extras


def test_files_that_start_first_exist() -> None:
    """A renamed file would start last, and the other workers would wait for it."""
    assert [path for path in LONGEST_FIRST if not (ROOT / path).is_file()] == []


def test_extras_by_person_lead_to_extras_by_library() -> None:
    """`train` and `all` name existing extras, and `all` leaves out those that few can install."""
    extras = PROJECT["project"]["optional-dependencies"]

    def reached(name: str) -> set[str]:
        found = {name}
        for requirement in extras[name]:
            own = re.fullmatch(r"wattloop\[([a-z,]+)\]", requirement)
            for below in own[1].split(",") if own else ():
                found |= reached(below)
        return found

    assert {"torch", "tune", "figures"} <= reached("train")
    needs_more = {"amd", "cupy", "mpi", "tensorflow"}  # a driver, a compiler, or gigabytes
    kernels = {"numba", "jax"}  # for `wattloop bench` only
    covered = {each for name in reached("all") for each in extras[name]}
    for name in set(extras) - needs_more - kernels:
        assert all(each in covered or each.startswith("wattloop[") for each in extras[name]), name


def test_every_extra_is_on_the_page_of_extras() -> None:
    """A newcomer finds every extra in docs/start.md, and only those."""
    page = (ROOT / "docs" / "start.md").read_text("utf-8").partition("## Extras")[2]
    named = [
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in row.split(", ")
    ]
    assert sorted(name.strip("`") for name in named) == sorted(
        PROJECT["project"]["optional-dependencies"]
    )


def test_metadata_follow_the_standard() -> None:
    """A license expression of PEP 639 with its file, and no contradicting classifier."""
    project = PROJECT["project"]
    assert project["license"] == "Apache-2.0"
    assert [each for each in project["license-files"] if not (ROOT / each).is_file()] == []
    assert not any(each.startswith("License ::") for each in project["classifiers"])
    assert {"Documentation", "Repository", "Issues", "Changelog"} <= set(project["urls"])


def test_the_demo_installs_what_it_uses_and_no_training_framework() -> None:
    """A first try does not download gigabytes."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    extras = PROJECT["project"]["optional-dependencies"]
    (names,) = re.findall(r"^DEMO_EXTRAS := (\S+)$", makefile, re.MULTILINE)
    requirements = " ".join(each for name in names.split(",") for each in extras[name])
    heavy = ("torch", "jax", "ray", "keras", "tensorflow", "transformers", "lightning")
    assert [each for each in heavy if re.search(rf"\b{each}\b", requirements)] == []
    assert "demo: $(DEMO_STAMP)" in makefile
    imported = (ROOT / "examples" / "digits_mlp.py", ROOT / "examples" / "tune_digits.py")
    demo = (ROOT / "scripts" / "demo.sh").read_text("utf-8")
    assert [each.name for each in imported if each.name not in demo] == []
    assert not any(re.search(r"^\s*(?:import|from) torch", f.read_text(), re.M) for f in imported)
