"""Hooks of mkdocs.yml: pages generated from the code, and links that leave the site.

- `reference/cli/`: one page per verb, from the typer app.
- `reference/python.md`: the public names of the packages, which mkdocstrings describes.
- `reference/http.md`: every call, from the OpenAPI document of the server.
- `notebooks/NAME.md`: cells and outputs of docs/notebooks/NAME.ipynb.
- `FOLDER/*` in the navigation becomes the pages of that folder; pages that it does not name are
  put under "More".
- A link to a file of the repository that is not a page becomes an address of the repository.
"""

import ast
import importlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/wattloop/wattloop"
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)

PACKAGES = {
    "wattloop": "Measure",
    "wattloop.tune": "Tune",
    "wattloop.predict": "Predict",
    "wattloop.kernels": "Kernels",
}
"""Packages whose `__all__` is public, with the heading of each."""
MODULES = {
    "Training loops": [
        "wattloop.integrations.torch_loop.EnergyMeter",
        "wattloop.integrations.huggingface.EnergyCallback",
        "wattloop.integrations.lightning.EnergyCallback",
        "wattloop.integrations.keras_callback.EnergyCallback",
        "wattloop.integrations.sklearn_fit.measured",
        "wattloop.integrations.generation.GenerationMeter",
        "wattloop.integrations.distributed.measured_together",
    ],
    "Energy tests": ["wattloop.check.pytest_plugin.energy"],
}
"""Further public objects by heading: those that docs/integrations.md and docs/check.md use."""


# Generated pages


def generated_pages() -> dict[str, str]:
    """Return Markdown by path below docs/."""
    return {
        **_cli_pages(),
        "reference/python.md": _python_page(),
        "reference/http.md": _http_page(),
        **{
            f"notebooks/{each.stem}.md": notebook_page(json.loads(each.read_text("utf-8")))
            for each in sorted((DOCS / "notebooks").glob("*.ipynb"))
        },
    }


def _cli_pages() -> dict[str, str]:
    import typer

    from wattloop.cli.app import VERBS

    pages = {}
    rows = []
    for verb, (module, summary) in sorted(VERBS.items()):
        app = importlib.import_module(f"wattloop.cli.commands.{module}").app
        command = typer.main.get_command(app)
        parts = [f"# wattloop {verb}\n", *_command_parts(command, f"wattloop {verb}", 2)]
        pages[f"reference/cli/{verb}.md"] = "\n".join(parts)
        rows.append(f"| [`{verb}`]({verb}.md) | {_cell(summary)} |")
    head = (
        "# Command line\n\nOne page per verb, generated from the program. Settings, exit codes and "
        "signals that all verbs share are on [another page](../../cli.md).\n\n"
        "| verb | purpose |\n|---|---|\n"
    )
    return {"reference/cli/README.md": head + "\n".join(rows) + "\n", **pages}


def _command_parts(command: Any, name: str, level: int) -> list[str]:
    """Describe one command and the commands below it."""
    context = command.context_class(command, info_name=name)
    usage = re.sub(r"\s+", " ", command.get_usage(context)).removeprefix("Usage: ")
    parts = [_prose(command.help or ""), f"\n```text\n{usage}\n```\n"]
    parts += _parameters(command)
    if command.epilog:
        parts.append(f"\n```text\n{_plain(command.epilog)}\n```\n")
    for word, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            parts.append(f"\n{'#' * level} {name} {word}\n".replace("wattloop ", "", 1))
            parts += _command_parts(below, f"{name} {word}", level + 1)
    return parts


def _parameters(command: Any) -> list[str]:
    rows = []
    for each in command.params:
        if getattr(each, "hidden", False) or each.name == "help":
            continue
        if each.param_type_name == "argument":
            title = each.metavar or each.name.upper()
        else:
            title = ", ".join([*each.opts, *each.secondary_opts])
            if not each.is_flag and each.metavar:
                title += f" {each.metavar}"
        default = each.default
        shown = f"`{default}`" if isinstance(default, (int, float, str)) and default != "" else ""
        if isinstance(default, bool):
            shown = ""
        rows.append(f"| `{_cell(title)}` | {_cell(each.help or '')} | {_cell(shown)} |")
    if not rows:
        return []
    return ["\n| option | meaning | default |\n|---|---|---|", *rows, ""]


def _plain(text: str) -> str:
    """Remove rich's markup and typer's marks of paragraphs."""
    text = re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)[^\]]*\]", "", text)
    return text.replace("\b", "").replace("\f", "").strip()


def _prose(text: str) -> str:
    """Return help as Markdown: text like a tag or a link is shown literally."""
    return re.sub(r"([<>\[\]*])", r"\\\1", _plain(text))


def _cell(text: str) -> str:
    text = re.sub(r"\s+", " ", _plain(text)).replace("|", "\\|")
    return text if text.startswith("`") or "`" in text else re.sub(r"([<>*])", r"\\\1", text)


def _python_page() -> str:
    parts = [
        "# Python\n\nThe public names, from their docstrings. What is not here may change without "
        "notice. [The list of modules](../map.md) says where the rest is.\n"
    ]
    for package, title in PACKAGES.items():
        module = importlib.import_module(package)
        parts.append(
            f"\n## {title}: `{package}`\n\n{_prose((module.__doc__ or '').split(chr(10))[0])}\n"
        )
        homes = _homes(Path(module.__file__ or ""), package)
        for name in module.__all__:
            if name in homes:
                parts.append(
                    f"\n::: {homes[name]}\n    options:\n      show_root_full_path: false\n"
                )
    for title, names in MODULES.items():
        parts.append(f"\n## {title}\n")
        parts += [f"\n::: {name}\n" for name in names]
    return "".join(parts)


def _homes(source: Path, package: str) -> dict[str, str]:
    """Return public name -> module that defines it, from the imports of a package's `__init__`."""
    found = {}
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                found[each.asname or each.name] = f"{node.module}.{each.name}"
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.setdefault(node.name, f"{package}.{node.name}")
    return found


def _http_page() -> str:
    from wattloop.serve.app import create_app
    from wattloop.serve.options import ServeOptions

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(ServeOptions(store=str(Path(folder) / "runs.db")))
        document = app.openapi()
        app.state.wattloop.close()
    calls: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            tag = (call.get("tags") or ["other"])[0]
            calls.setdefault(tag, []).append(_call(method, path, call))
    about = {each["name"]: each.get("description", "") for each in document.get("tags", ())}
    parts = [
        "# Calls of the HTTP API\n\nFrom the OpenAPI document that a server gives at "
        "`/api/v1/openapi.json`. Units, faults and tokens are on [the page of the API](../api.md).\n"
    ]
    for tag, entries in calls.items():
        parts.append(f"\n## {tag}\n\n{_prose(about.get(tag, ''))}\n" + "".join(entries))
    return "".join(parts)


def _call(method: str, path: str, call: dict[str, Any]) -> str:
    text = f"\n### `{method.upper()} {path}`\n\n"
    text += _prose(call.get("description") or call.get("summary") or "") + "\n"
    rows = [
        f"| `{one['name']}` | {one['in']} | {_kind(one.get('schema', {}))} "
        f"| {_cell(one.get('description', ''))} |"
        for one in call.get("parameters", ())
    ]
    if rows:
        text += (
            "\n| parameter | in | type | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    bodies = call.get("requestBody", {}).get("content", {})
    if bodies:
        text += "\nBody: " + ", ".join(f"`{kind}`" for kind in bodies) + ".\n"
    answers = ", ".join(f"{code}" for code in sorted(call.get("responses", {})))
    return text + f"\nAnswers: {answers}.\n"


def _kind(schema: dict[str, Any]) -> str:
    kinds = [one.get("type", "") for one in schema.get("anyOf", ())] or [schema.get("type", "")]
    if "enum" in schema:
        return _cell(", ".join(f"`{each}`" for each in schema["enum"]))
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("default", "default"))
        if schema.get(key) not in (None, "")
    ]
    return _cell(" ".join([" or ".join(filter(None, kinds)), *bounds]))


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return cells and outputs of a notebook as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/svg+xml" in data:
                parts.append("".join(data["image/svg+xml"]))
            elif "image/png" in data:
                encoded = "".join(data["image/png"]).strip()
                parts.append(f"![output of the cell](data:image/png;base64,{encoded})")
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


# Events of MkDocs


def on_config(config: Any) -> Any:
    """Expand `FOLDER/*` in the navigation."""
    pages = {
        each.relative_to(DOCS).as_posix(): each.read_text("utf-8") for each in DOCS.rglob("*.md")
    }
    config.extra["generated"] = generated_pages()
    pages.update(config.extra["generated"])
    nav = [_expanded(entry, pages) for entry in config.nav]
    named = set(_leaves(nav))
    more = [{_title(pages[name]): name} for name in sorted(pages) if name not in named]
    config.nav = [*nav, {"More": more}] if more else nav
    return config


def _leaves(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    return [leaf for value in values for leaf in _leaves(value)]


def _expanded(entry: Any, pages: dict[str, str]) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: [_expanded(each, pages) for each in value]}
    if not value.endswith("/*"):
        return entry
    folder = value.removesuffix("*")
    inside = sorted(name for name in pages if re.fullmatch(re.escape(folder) + r"[^/]+\.md", name))
    first = [name for name in inside if name.endswith("/README.md")]
    rest = [{_title(pages[name]): name} for name in inside if name not in first]
    return {title: [*first, *rest]}


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return re.sub(r"[`*]", "", found[1]) if found else "Page"


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, text in config.extra.pop("generated").items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links that leave docs/ at the repository, and links to a folder at its index."""
    if page.file.src_uri.startswith(("adr/", "benchmarks/", "map.md")):
        page.meta.setdefault("search", {"boost": 0.3})  # pages with an order of their own first
    folder = (DOCS / page.file.src_uri).parent
    known = {file.src_uri for file in files}

    def target(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found[1]))
        anchor = found[2] or ""
        if path.is_relative_to(DOCS):
            inside = path.relative_to(DOCS).as_posix()
            if f"{inside}/README.md" in known:
                return f"]({found[1].rstrip('/')}/README.md{anchor})"
            if found[1].endswith(".ipynb"):
                return f"]({found[1].removesuffix('.ipynb')}.md{anchor})"
            if inside in known or not path.exists():
                return found[0]  # MkDocs reports missing files
        if not path.exists():
            return found[0]
        view = "tree" if path.is_dir() else "blob"
        return f"]({REPOSITORY}/{view}/main/{path.relative_to(ROOT).as_posix()}{anchor})"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(target, part) for part in parts)
