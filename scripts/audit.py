"""Check the versions in a lock file for known vulnerabilities, and report unchecked ones.

Usage: python scripts/audit.py [FILE]

pip-audit ends with 0 also where its service knew none of the packages or could not be reached. An
audit that checked nothing must not look like a clean one, so this script reads its JSON. Exit
codes: 0 all were checked and none is known; 1 some are known; 2 some could not be checked.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "constraints.txt"
SERVICES = ("pypi", "osv")
TIMEOUT_S = "15"


def main(file: Path) -> int:
    """Ask one service after the other until one has checked everything."""
    reasons = []
    best: list[dict[str, Any]] = []
    for service in SERVICES:
        answer, reason = asked(service, file)
        if reason or not checked(answer):
            reasons.append(f"{service}: {reason or 'it knows none of the packages'}")
        best = max(best, answer, key=lambda packages: len(checked(packages)))
        if answer and len(checked(answer)) == len(answer):
            break
    lines, code = verdict(best, reasons)
    print("\n".join(lines))
    return code


def asked(service: str, file: Path) -> tuple[list[dict[str, Any]], str]:
    """Return (the service's answer on each package, the reason for a missing answer)."""
    words = ["--vulnerability-service", service, "--requirement", str(file), "--no-deps"]
    words += ["--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *words, "--timeout", TIMEOUT_S],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return list(json.loads(done.stdout)["dependencies"]), ""
    except (ValueError, KeyError, TypeError):
        errors = done.stderr.strip().splitlines()
        return [], errors[-1][:160] if errors else f"it ended with code {done.returncode}"


def checked(packages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the packages that the service knew."""
    return [package for package in packages if "vulns" in package]


def verdict(packages: list[dict[str, Any]], reasons: list[str]) -> tuple[list[str], int]:
    """Return (lines for people, exit code)."""
    lines = []
    for package in checked(packages):
        for found in package["vulns"]:
            fixed = ", ".join(found.get("fix_versions") or []) or "no version yet"
            lines.append(
                f"audit: {package['name']} {package['version']}: {found['id']}, fixed in {fixed}"
            )
    vulnerable = bool(lines)
    skipped = [package for package in packages if "vulns" not in package]
    if not checked(packages):
        lines += [f"audit: {reason}" for reason in reasons]
        lines.append("audit: NOTHING WAS CHECKED: no vulnerability service answered")
        lines.append("audit: run it again where pypi.org or osv.dev can be reached")
        return lines, 2
    if skipped:
        names = ", ".join(package["name"] for package in skipped)
        lines.append(f"audit: {len(skipped)} packages were not checked: {names}")
    known = "vulnerabilities are known, see above" if vulnerable else "no vulnerability is known"
    lines.append(f"audit: {len(checked(packages))} packages were checked: {known}")
    return lines, 1 if vulnerable else 2 if skipped else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else LOCK))
