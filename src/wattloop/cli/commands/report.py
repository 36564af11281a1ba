"""`wattloop report`: write a report on a run or experiment as HTML or PDF."""

from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.cli.app import StoreOptions, Verb
from wattloop.cli.options import argument, file_option, option
from wattloop.cli.output import check_target, say, write_json
from wattloop.cli.progress import spinner
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_bytes

if TYPE_CHECKING:
    from wattloop.report.document import Document


app = Verb()


@app.command(example="wattloop report last -o report.html\nwattloop report caps --pdf")
def report(
    subject: str = argument(
        "RUN|SWEEP|SEARCH|CAMPAIGN|STUDY",
        "Identifier, its beginning, a name, or 'last' for the last run.",
        "last",
    ),
    *,
    html: bool = option("--html", "One HTML file (the default)."),
    pdf: bool = option("--pdf", "A typeset PDF."),
    output: str | None = file_option("--output -o FILE", "Where to write it."),
    given: StoreOptions,
) -> None:
    """Write a report as one HTML file that opens offline, or as a PDF."""
    from wattloop.report.figures.render import needs_libraries
    from wattloop.report.pdf import needs_typesetter
    from wattloop.report.subject import report_of
    from wattloop.store.formats.table_files import Target

    kinds = _kinds(output, html=html, pdf=pdf)
    if "pdf" in kinds:
        needs_typesetter()  # its extra brings what figures need as well
    needs_libraries()
    with given.open_store() as place, spinner("working it out"):
        document = report_of(place, subject, given.settings())
    written = {}
    for kind in kinds:
        path = _target(output, kind, document.about.get("id", "report"))
        check_target(str(path), "--output")
        with spinner(f"drawing {path}"), Target(str(path), "--output").path() as whole:
            whole.write_bytes(_rendered(document, kind))
        written[kind] = str(path)
        say(f"wattloop: {document.title}: {path} ({format_bytes(path.stat().st_size)})")
    write_json({"title": document.title, "about": dict(document.about), **written}, given.json_file)


def _kinds(output: str | None, *, html: bool, pdf: bool) -> list[str]:
    """Return the file types to write; the ending of the file's name may decide."""
    ending = _ending(output)
    if output == "-":
        raise ConfigError("--output -: a report is a file; name it, such as report.html")
    asked = [kind for kind, wanted in (("html", html), ("pdf", pdf)) if wanted]
    if ending not in ("", "html", "pdf"):
        raise ConfigError(f"--output {output}: a report is .html or .pdf")
    if len(asked) == 1 and ending not in ("", asked[0]):
        raise ConfigError(f"--{asked[0]} --output {output}: the name says something else")
    return asked or [ending or "html"]


def _ending(output: str | None) -> str:
    ending = "" if output is None else Path(output).suffix.lower().removeprefix(".")
    return "html" if ending == "htm" else ending


def _target(output: str | None, kind: str, usual: str) -> Path:
    """Return the file's path with the ending of its type."""
    if output is None:
        return Path(f"{usual}.{kind}")
    path = user_path(output)
    return path if _ending(output) == kind else path.with_name(f"{path.stem}.{kind}")


def _rendered(document: "Document", kind: str) -> bytes:
    if kind == "pdf":
        from wattloop.report.pdf import document_pdf

        return document_pdf(document)
    from wattloop.report.html import document_html

    return document_html(document).encode()
