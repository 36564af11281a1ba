"""The README of the package index: relative links become addresses of the repository.

In the repository README.md links to files by their relative paths, which also work in a clone and
on a branch. An index shows the README without those files, so the package's description has
absolute links instead. Everything else is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
IMAGES = (".png", ".svg")


def description() -> str:
    """Return README.md with absolute links."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    repository = project["urls"]["Repository"]

    def absolute(found: re.Match[str]) -> str:
        # An image has to be the file itself, not the page that shows it.
        view = "raw" if found[1].endswith(IMAGES) else "blob"
        return f"]({repository}/{view}/main/{found[1]})"

    text = (ROOT / "README.md").read_text("utf-8")
    return re.sub(r"\]\((?!https?:|#|mailto:)([^)\s]+)\)", absolute, text)


if __name__ == "__main__":
    setup(long_description=description(), long_description_content_type="text/markdown")
