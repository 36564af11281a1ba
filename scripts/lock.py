"""Write constraints.txt: one version of every package that make, CI and the image install.

Usage: python scripts/lock.py EXTRAS

pip resolves the package with these extras and the tools of requirements-*.txt, and installs
nothing. The pins above the marker are chosen by hand and kept. Versions are those that the lowest
supported Python takes, so run it with that one; later Pythons take the same or are named.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "constraints.txt"
TOOLS = ("requirements-dev.txt", "requirements-docs.txt")
MARKER = "# Below this line: written by `make lock`."


def main(extras: str) -> None:
    """Resolve, write, and check with the other Pythons."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = re.search(r"\d+\.\d+", project["requires-python"])
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if lowest is None or here != lowest.group():
        sys.exit(f"lock: run it with Python {lowest and lowest.group()}, not {here}")
    by_hand = LOCK.read_text().partition(MARKER)[0]
    pins = resolved(extras, by_hand)
    chosen = {name.lower() for name in re.findall(r"^([\w.-]+)==", by_hand, re.M)}
    lines = [f"{name}=={version}" for name, version in pins if name.lower() not in chosen]
    LOCK.write_text(f"{by_hand}{MARKER}\n" + "\n".join(lines) + "\n")
    print(f"lock: {len(lines)} packages pinned, for Python {here}")
    versions = [text.rpartition(" ")[2] for text in project["classifiers"] if ":: 3." in text]
    for version in versions:
        missing = without_wheel(version, pins)
        print(f"lock: Python {version}: {f'no wheel of {missing}' if missing else 'all fit'}")


def resolved(extras: str, by_hand: str) -> list[tuple[str, str]]:
    """Return (name, version) of everything that would be installed, by name."""
    with tempfile.TemporaryDirectory() as folder:
        report, chosen = Path(folder) / "report.json", Path(folder) / "by_hand.txt"
        chosen.write_text(by_hand)
        words = ["install", "--dry-run", "--ignore-installed", "--quiet"]
        words += ["--report", str(report), "--constraint", str(chosen)]
        for tools in TOOLS:
            words += ["--requirement", str(ROOT / tools)]
        words.append(f"{ROOT}[{extras}]")
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    # a local version (2.13.0+cpu) says which build a registry gave, not which release it is
    pins = {one["name"]: one["version"].partition("+")[0] for one in found}
    left_out = ("wattloop", "pip")  # the package itself, and the installers
    return sorted((one for one in pins.items() if one[0] not in left_out), key=_by_name)


def _by_name(pin: tuple[str, str]) -> str:
    return pin[0].lower()


def without_wheel(version: str, pins: list[tuple[str, str]]) -> str:
    """Return packages that this Python would have to build at the pinned version; pip downloads
    none.
    """
    missing: list[str] = []
    wanted = [f"{name}=={pinned}" for name, pinned in pins]
    words = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:"]
    words += ["--python-version", version, "--target", str(ROOT / "build" / "none")]
    while wanted:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words, *wanted],
            capture_output=True,
            text=True,
            check=False,
        )
        refused = re.search(r"No matching distribution found for (\S+==\S+)", done.stderr)
        if refused is None:
            break
        missing.append(refused.group(1))
        wanted.remove(refused.group(1))
    return ", ".join(missing)


if __name__ == "__main__":
    main(sys.argv[1])
