"""Promises of outputs in the documentation: the commands print the same today.

test_transcripts.py follows whole pages for newcomers. This module tests single blocks: those whose
figures follow from their input must agree to the last digit, the others in shape.
"""

import re
import shlex
from pathlib import Path

import pytest

from tests.analyze import synthetic_runs
from tests.support.free_ports import PortBlock
from tests.support.transcripts import Session, Step, not_printed, steps_of
from tests.test_doc_blocks import blocks
from wattloop.cli.main import main

ROOT = Path(__file__).parents[1]


def steps_on(page: str) -> list[Step]:
    """Return the commands of a page with the lines below them, fenced or indented."""
    texts = ["\n".join(block.lines) for block in blocks() if block.page == page]
    return [step for text in texts if re.search(r"^\$ ", text, re.M) for step in steps_of(text)]


def step_on(page: str, beginning: str) -> Step:
    (found,) = (step for step in steps_on(page) if step.command.startswith(beginning))
    return found


def differing(step: Step, printed: list[str]) -> list[str]:
    """Return lines that are shown but not printed, to the digit; `...` stands for the rest of a
    line.
    """
    plain = [re.sub(r"\s+", " ", line).strip() for line in printed]
    missing = []
    for line in step.shown:
        text = re.sub(r"\s+", " ", line).strip()
        pattern = re.escape(text).replace(re.escape("..."), ".*")
        if text and not any(re.fullmatch(pattern, each) for each in plain):
            missing.append(line)
    return missing


@pytest.fixture
def here(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, a store and a configuration for one test."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    monkeypatch.setenv("WATTLOOP_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    return tmp_path


EXACT = [
    ("docs/analyze.md", "wattloop analyze top", "greenscreen"),
    ("docs/analyze.md", "wattloop analyze ols", "greenscreen"),
    ("docs/analyze.md", "wattloop analyze matrix", "greenscreen"),
    ("docs/analyze.md", "wattloop analyze clusters", "cali3"),
    ("docs/simulate.md", "wattloop simulate thesis-pareto --policies pollux,chronos", ""),
    ("docs/simulate.md", "wattloop simulate thesis-pareto --policies pollux,themis", ""),
    ("docs/simulate.md", "wattloop simulate whatif thesis-pareto", ""),
    ("docs/simulate.md", "wattloop simulate llm", ""),
    (
        "docs/predict-compiled.md",
        "wattloop predict --model hf:gpt2 --seq 1024 --batch 8 --precision bf16 --compile",
        "",
    ),
    (
        "docs/predict-compiled.md",
        "wattloop predict --model hf:gpt2 --seq 1024 --batch 8 --precision bf16 --sweep",
        "",
    ),
    ("docs/predict-serving.md", "wattloop predict serve --model hf:llama", ""),
    ("docs/predict-parallel.md", "wattloop predict plan --model hf:llama-3-70b --gpus 32", ""),
    ("docs/predict-parallel.md", "wattloop predict plan --model hf:llama-3-70b --gpus 8 ", ""),
    ("docs/predict-parallel.md", "wattloop predict --model hf:llama-3-70b --gpu h100-sxm", ""),
    ("docs/predict-serving.md", "wattloop predict serve --model hf:tinyllama", ""),
]
"""Page, beginning of the command, table of generated runs that it reads."""


@pytest.mark.parametrize(("page", "beginning", "table"), EXACT)
def test_figures_of_a_page_are_those_of_today(
    page: str, beginning: str, table: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same input gives the same figures, on every machine."""
    needs = {"analyze": ("sklearn",), "predict": ("torch", "transformers")}
    for library in needs.get(beginning.split()[1], ()):
        pytest.importorskip(library, reason=f"{library} is not installed")
    if table:
        synthetic_runs.main(table)
        (here / f"{table}.csv").write_text(capsys.readouterr().out)
    step = step_on(page, beginning)
    words = shlex.split(step.command)[1:]
    if "--plot" in words:  # the figures have tests of their own
        at = words.index("--plot")
        words = words[:at] + words[at + 2 :]
    if words[0] == "simulate":
        words += ["--workers", "1"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    shown = Step(step.command, tuple(x for x in step.shown if "figures in" not in x))
    assert differing(shown, [*out.splitlines(), *err.splitlines()]) == []


def messages_on(page: str, word: str) -> list[str]:
    """Return the lines of the block without commands that contains a word."""
    texts = [block.lines for block in blocks() if block.page == page and not block.language]
    (found,) = (lines for lines in texts if any(word in line for line in lines))
    return [line for line in found if line.strip()]


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a command that fails; return its message as one paragraph per line."""
    assert main(words) == 2
    return [
        line.removeprefix("wattloop: ").strip() for line in capsys.readouterr().err.splitlines()
    ]


def test_a_mistake_in_the_settings_is_named_as_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/cli.md: file, line, key and the nearest one."""
    (shown,) = messages_on("docs/cli.md", "intervall")
    (here / "wattloop.yaml").write_text("pue: 1.2\nzone: FRA\nintervall: 1\n")
    found = told(["run", "--config", "wattloop.yaml", "--", "true"], capsys)
    assert shown.partition("/home/ada/")[2] in "\n".join(found)


def test_a_mistake_in_a_sweep_is_named_as_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/sweep.md."""
    (shown,) = messages_on("docs/sweep.md", "repeets")
    (here / "caps.yaml").write_text("name: caps\nlevers:\n  gpu/power_limit: [300 W]\nrepeets: 2\n")
    assert shown.removeprefix("wattloop: ") in told(["sweep", "caps.yaml", "--", "true"], capsys)


@pytest.mark.parametrize("least", ["0", "0.001"])
def test_mistakes_in_a_search_are_named_as_shown(
    least: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/tune-spec.md: an impossible range, then a default outside its range."""
    scale, default = messages_on("docs/tune-spec.md", "logarithmic")
    (here / "search.yaml").write_text(
        "name: search\nmetric: {name: accuracy, goal: maximize, target: 0.9}\n"
        "program: train.py\nstrategy: race\nparameters:\n"
        "  batch_size: {values: [32, 64, 128]}\n"
        f"  lr: {{distribution: log_uniform_values, min: {least}, max: 0.1}}\n"
        "  depth: {values: [1, 2]}\n# a comment\n\ndefault:\n  batch_size: 48\n"
    )
    assert (scale if least == "0" else default) in told(["tune", "run", "search.yaml"], capsys)


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [(0, "gpu: a40", "gpu: a41"), (1, "rounds:", "ruonds:")],
    ids=["GPU", "field"],
)
def test_mistakes_in_a_scenario_are_named_as_shown(
    number: int, old: str, new: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/scenarios.md: an unknown GPU and an unknown field, each with the nearest."""
    shown = messages_on("docs/scenarios.md", "a41")[number].removesuffix("...").strip()
    message = shown.partition(": ")[2]
    text = (
        "like: thesis-pareto\ncluster:\n  name: lab\n  groups:\n"
        "    - {name: a, gpu: a40, nodes: 2, gpus_per_node: 4, host_w: 100}\n"
        "engine:\n  rounds: 30 s\n"
    )
    (here / "lab.yaml").write_text(text.replace(old, new))
    found = told(["simulate", "lab.yaml", "--policies", "fifo"], capsys)
    assert any(message in line and line.startswith("lab.yaml:") for line in found), found


def test_a_mistake_in_a_gpu_file_is_named_as_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/gpus.md: the file of the page with a letter left out."""
    (shown,) = messages_on("docs/gpus.md", "memory_byte_s:")
    place = here / "wattloop" / "gpus"
    place.mkdir(parents=True)
    texts = ["\n".join(each.lines) for each in blocks() if each.page == "docs/gpus.md"]
    (yaml,) = (text for text in texts if "like: h100-pcie" in text)
    (place / "h100-nvl.yaml").write_text(yaml.replace("memory_bytes_s", "memory_byte_s") + "\n")
    main(["predict", "gpus"])
    out, err = capsys.readouterr()
    assert shown in f"{out}{err}"


def test_the_warning_about_a_gpu_without_calibration_is_as_shown(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/predict-uncalibrated.md."""
    shown = " ".join(messages_on("docs/predict-uncalibrated.md", "Tesla T4"))
    workload = str(ROOT / "examples" / "gpt2.json.gz")
    assert main(["predict", "--model", workload, "--gpu", "t4"]) == 0
    out, err = capsys.readouterr()
    assert shown in re.sub(r"\s+", " ", f"{out}{err}")


VIRTUAL = {"WATTLOOP_VIRTUAL_GPUS": "1"}


def test_the_table_of_caps_is_as_shown(tmp_path: Path) -> None:
    """docs/cap.md: probes, the best cap with intervals, and the command that uses it."""
    texts = [each.lines for each in blocks() if each.page == "docs/cap.md" and not each.language]
    (shown,) = (lines for lines in texts if any("best cap for edp" in line for line in lines))
    session = Session(tmp_path, {"WATTLOOP_VIRTUAL_GPUS": "2"})
    work = "python -m wattloop.virtual.train --gpus 2"
    printed = session.run(f"wattloop cap find --metric edp -- {work} --time-scale 120")
    printed = [re.sub(r" \([\d.]+ Wh\)", "", line) for line in printed]  # from a kilojoule on
    often = re.compile(r"\s+\d+ probes; |  GPU energy saved|  time lost")  # follow from the noise
    assert not_printed(tuple(line for line in shown if not often.match(line)), printed) == []


def test_the_table_of_a_check_is_as_shown(tmp_path: Path) -> None:
    """docs/check.md: a job that does other work is a regression."""
    texts = [each.lines for each in blocks() if each.page == "docs/check.md" and not each.language]
    (shown,) = (lines for lines in texts if any("verdict" in line for line in lines))
    session = Session(tmp_path, VIRTUAL)
    check = "wattloop check --baseline e.json --name job --repeats 2"
    work = "python -m wattloop.virtual.train"
    session.run(f"{check} --update -- {work}")
    printed = session.run(f"{check} -- {work} --job matmul || true")
    rows = tuple(re.sub(r"(regression|shown only)$", "...", line) for line in shown)
    assert not_printed(rows, printed) == []


def test_advice_is_as_shown(tmp_path: Path) -> None:
    """docs/advise.md: a run without waste lists the rules that apply, and the reasons of the
    others.
    """
    session = Session(tmp_path, VIRTUAL)
    session.run("wattloop run -- python -m wattloop.virtual.train --job matmul --time-scale 12")
    step = step_on("docs/advise.md", "wattloop advise")
    unsteady = ("found waste", "noticed no steps", "compile-share", "looked and found")
    rows = tuple(line for line in step.shown if not any(word in line for word in unsteady))
    assert rows
    printed = session.run(step.command)
    assert not_printed(rows, printed) == []
    assert any("to advise on" in line or "advice" in line for line in printed)


def test_tokens_of_a_server_are_as_shown(tmp_path: Path) -> None:
    """docs/serving.md: tokens and requests of a server, and the cost of each."""
    step = step_on("docs/serving.md", "wattloop run --serving http://127.0.0.1:18123")
    ports = PortBlock()
    command = step.command.replace("18123", str(ports.take())).removesuffix("6") + "3"
    command = command.replace("tests/support", str(ROOT / "tests" / "support"))
    rows = [re.sub(r"\| cpu .*\| run", "| ... | run", line) for line in step.shown]
    printed = Session(tmp_path).run(command)
    ports.close()
    assert not_printed(tuple(rows), printed) == []
