"""Check a built site: links lead to files and anchors of it, and nothing is loaded from elsewhere.

Usage: python scripts/check_site.py FOLDER

MkDocs checks the links of Markdown pages; this script reads the site as a browser does, with
generated references, navigation and search.
"""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links, anchors and loaded files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect links, anchors and files of a tag."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        elif "src" in found:
            self.loaded.add(found["src"])
        elif tag == "link" and found.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.add(found.get("href", ""))


def faults_of(site: Path) -> list[str]:
    """Return one line per broken link and per file that another server would have to give."""
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where}: loads {each}" for each in page.loaded if urlsplit(each).netloc]
        for each in sorted(page.links | page.loaded):
            parts = urlsplit(each)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{where}: {each}: no such file")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                if not parts.fragment.startswith("__"):  # parts of the theme's own scripts
                    found.append(f"{where}: {each}: no such anchor")
    index = site / "search" / "search_index.js"
    if not index.is_file():
        found.append("search/search_index.js is missing: the search needs a server")
    elif len(json.loads(index.read_text("utf-8").partition("=")[2])["docs"]) < len(pages):
        found.append("search/search_index.js has fewer entries than there are pages")
    return found


if __name__ == "__main__":
    faults = faults_of(Path(sys.argv[1]).resolve())
    if faults:
        sys.exit("\n".join(faults))
