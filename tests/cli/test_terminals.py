"""Promises of every verb that draws a bar, asks, colours or fits a table, in a real terminal."""

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import SRC, Machine
from tests.cli.pseudo_terminal import Shown, in_terminal
from tests.control.daemon.test_audit_log import PEER
from tests.predict.small import small_workload
from tests.schedule.campaigns.worlds import TINY
from tests.support.environment import without
from tests.support.virtual_caps import virtual_curve
from tests.sweep.conftest import virtual_environment
from tests.tune.replay.small_tables import write_tables
from wattloop.cap.evaluation import COLUMNS
from wattloop.control.daemon.audit_log import AuditLog
from wattloop.predict.workload.files import save_workload
from wattloop.store.database import open_store
from wattloop.store.runs import find_run

GPU_WORK = """
from wattloop.virtual.node import shared_machine
from wattloop.virtual.gpu import GpuWork
shared_machine(1).gpus[0].run(GpuWork(flops=989e12 * 0.05))
"""
TRAIN = "for epoch in range(1, 4): print(f'epoch {epoch} loss={1 / epoch:.3f} accuracy=0.9')"
SWEEP = "name: caps\nlevers:\n  gpu/power_limit: [300, 500]\nrepeats: 1\nwarmup: 0\n"
SEARCH = """\
name: small
metric: {name: accuracy, goal: maximize, target: 0.8}
strategy: grid
parameters:
  lr: {values: [0.1, 0.2]}
default: {lr: 0.1}
"""
TRIALS = "lr,layers,accuracy,energy_j\n" + "".join(
    f"{lr},{layers},{0.7 + lr * layers / 10},{10 + 3 * layers + 20 * lr}\n"
    for lr in (0.1, 0.2, 0.3)
    for layers in (1, 2, 3)
)
PYTHON = sys.executable


@dataclass(frozen=True)
class Setting:
    """A terminal: how wide it is, and what its user has set."""

    columns: int
    term: str = "xterm-256color"
    no_color: str = ""

    def __str__(self) -> str:
        return f"{self.columns}-{self.term.partition('-')[0]}{'-NO_COLOR' * bool(self.no_color)}"


SETTINGS = (Setting(60), Setting(80, no_color="1"), Setting(200), Setting(80, "dumb"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Machine]:
    """A machine with two virtual GPUs, two runs, a sweep, a search and a campaign."""
    folder = tmp_path_factory.mktemp("terminal")
    own = virtual_environment(folder)
    path = f"{SRC}{os.pathsep}{own.pop('SITE')}"
    kept = without("WATTLOOP", "XDG", "NO_COLOR", "FORCE_COLOR", "TERM")
    cache = str(shared_cache)
    machine = Machine(
        folder,
        {**kept, **own, "PYTHONPATH": path, "HOME": str(folder), "XDG_CACHE_HOME": cache},
    )
    (folder / "caps.yaml").write_text(SWEEP)
    (folder / "search.yaml").write_text(SEARCH)
    (folder / "train.py").write_text(TRAIN)
    (folder / "work.py").write_text(GPU_WORK)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "trials.csv").write_text(TRIALS)
    save_workload(small_workload(), folder / "small.json")
    log = AuditLog(folder / "control.jsonl")
    log.write(
        "set", PEER, lever="gpu:0/power_limit", before=700.0, after=300.0, why="asked for 43%"
    )
    log.close()
    (folder / "zeus").mkdir()
    write_tables(folder / "zeus")
    _write_curve(folder / "power.csv")
    for words in (
        "run --name first -- true",
        "run --name second -- true",
        f"sweep caps.yaml -- {PYTHON} work.py",
        f"tune run search.yaml -- {PYTHON} train.py {{lr}}",
        "simulate tiny.yaml --policies fifo --seeds 1 --workers 1",
        "study init",
        "fleet tokens add --file tokens.json --node n1 --out secrets",
        f"cap find --caps 500:700:200 --probes 1 -- {PYTHON} work.py",
        "check --baseline b.json --name nap --repeats 1 --update -- true",
    ):
        done = machine.wattloop(*words.split())
        assert done.returncode == 0, (words, done.stderr.decode())
    yield machine


def _write_curve(path: Path) -> None:
    caps = [100.0, 150.0, 200.0, 250.0]
    curve = virtual_curve("v100", 300.0, caps)
    points = zip(caps, curve.time_s, curve.power_w, strict=True)
    rows = [f"d,n,1,sgd,{cap},{time_s},{power_w}" for cap, time_s, power_w in points]
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")


def shown(
    node: Machine, words: str, setting: Setting, answer: str = "", interrupt_after: str = ""
) -> Shown:
    """Run `wattloop` in such a terminal, and check that its output has no error."""
    command = node.command(*words.split())
    return started(node, command, setting, answer, interrupt_after)


def started(
    node: Machine,
    command: list[str],
    setting: Setting,
    answer: str = "",
    interrupt_after: str = "",
) -> Shown:
    """Run a command in such a terminal."""
    environment = {**node.environment, "TERM": setting.term}
    if setting.no_color:
        environment["NO_COLOR"] = setting.no_color
    found = in_terminal(command, environment, node.folder, setting.columns, answer, interrupt_after)
    for fault in ("Traceback", "fault of wattloop", "Error:"):
        assert fault not in found.text
    if setting.term == "dumb":
        assert not found.has_escapes, found.raw
    if setting.no_color:
        assert not found.has_colours, found.raw
    return found


# a bar, a spinner, a screen that is redrawn: in every terminal
DRAWN = {
    "watch": "watch --seconds 0.3 --refresh 0.1",
    "sweep": f"sweep caps.yaml --new -- {PYTHON} work.py",
    "sweep resume": "sweep resume",
    "analyze": "analyze ols trials.csv --target accuracy",
    "tune": f"tune run search.yaml --new -- {PYTHON} train.py {{lr}}",
    "tune final": "tune final",
    "tune export": "tune export --optuna {setting}.log",
    "tune replay": "tune replay --power zeus/power_x1.csv --train zeus/train.csv --seeds 1"
    " --strategy default-cap",
    "predict": "predict --model small.json --gpu h200",
    "predict sweep": "predict --model small.json --gpu h200 --sweep gpus=1,2",
    "simulate": "simulate tiny.yaml --policies fifo,zeus --seeds 2 --workers 1 --new",
    "cap evaluate": "cap evaluate --table power.csv --noise 2 --seeds 2",
    "idle": "idle --windows 0.1,0.2,0.3 --dry-run",
}
# a table, or a bar that takes seconds: in a narrow terminal, and in one that cannot draw
PRINTED = {
    "run": "run -- true",
    "devices": "devices --verify --seconds 2",
    "watch once": "watch --once",
    "advise": "advise first",
    "report": "report first --output report.html",
    "runs": "runs list",
    "runs all": "runs list --all",
    "runs show": "runs show first",
    "runs show all": "runs show first -v",
    "runs plot": "runs plot first --figure all",
    "doctor": "doctor",
    "runs compare": "runs compare first second",
    "sweep show": "sweep show --tables all",
    "sweep plot": "sweep plot",
    "bench": "bench --backends numpy --device cpu --threads 1 --seconds 0.05 --kernels triad"
    " --sizes triad=1e5 --idle none",
    "tune show": "tune show",
    "tune plot": "tune plot --figure pareto",
    "calibrate": "calibrate collect --gpu cpu --sections kernels --minutes 0.02 --resume"
    " -o samples.jsonl",
    "simulate show": "simulate show",
    "simulate plot": "simulate plot",
    "study": "study status",
    "card": "card first -o card",
    "check": "check --baseline b.json --name nap --repeats 2 -- true",
    "cap find": f"cap find --caps 300:700:200 --probes 1 -- {PYTHON} work.py",
    "set": "set gpu:0/power_limit=300 -- true",
    "restore": "restore",
    "predict gpus": "predict gpus",
    "simulate policies": "simulate policies",
    "simulate whatif": "simulate whatif tiny.yaml --nodes +1 --policy fifo --seeds 2 --workers 1",
    "help": "--help",
    "savings": "savings",
    "runs slope": "runs slope",
    "runs cost": "runs list --sort energy",
    "fleet nodes": "fleet nodes",
    "fleet tokens": "fleet tokens list --file tokens.json",
    "sweep list": "sweep list",
    "tune list": "tune list",
    "tune best": "tune best",
    "simulate list": "simulate list",
    "simulate scenarios": "simulate scenarios",
    "predict models": "predict models",
    "predict inspect": "predict inspect --model small.json --gpu h200",
    "analyze pareto": "analyze pareto last",
    "agent hooks": "agent hooks",
    "control-daemon": "control-daemon log --log control.jsonl",
    "devices again": "devices",
    "bench again": "bench --show last",
    "cap plot": "cap plot",
}
NARROW, DUMB = SETTINGS[0], SETTINGS[-1]
# what draws: a screen, a row of trials, a status, a counted bar and a spinner, once in every
# terminal; the verbs that share it where it fits least, without colours, and in a plain one
MECHANISMS = ("watch", "sweep", "tune", "cap evaluate", "predict")
COLOURLESS = Setting(60, no_color="1")
CASES = [(verb, setting) for verb in MECHANISMS for setting in SETTINGS]
CASES += [(verb, s) for verb in DRAWN if verb not in MECHANISMS for s in (COLOURLESS, DUMB)]
SLOW = ("report", "bench", "calibrate", "devices")
PRINTED_CASES = [(verb, NARROW) for verb in PRINTED]
PRINTED_CASES += [(verb, DUMB) for verb in PRINTED if verb not in SLOW]
# what is drawn by its own means, or cut to the width: in every terminal
OWN_LAYOUT = ("doctor", "runs show", "runs plot", "sweep plot", "tune plot", "simulate plot")
# what takes seconds is measured once; its table is shown again, or is the same at any width
ONCE = (*SLOW, "card", "cap find", "check", "set", "simulate whatif", *OWN_LAYOUT)
WIDER = (*OWN_LAYOUT, *(verb for verb in PRINTED if verb not in ONCE))
PRINTED_CASES += [(verb, setting) for verb in WIDER for setting in SETTINGS[1:3]]
TABLE_LINE = re.compile(r"(?!wattloop:)\S.* {2,}\S.* {2,}\S")


def assert_fits(found: Shown, setting: Setting, *codes: int) -> None:
    """It ended well, and neither a bar nor a table is wider than the terminal."""
    assert found.code in (0, *codes), found.text
    assert [line for line in found.redrawn if len(line) > setting.columns] == []
    tables = [line for line in found.text.splitlines() if TABLE_LINE.match(line)]
    assert [line for line in tables if len(line) > setting.columns] == []


MARK = "@@@"
ONE_AFTER_ANOTHER = """
import json, os, sys
from wattloop.cli.main import main
from wattloop.store.database import open_store
from wattloop.store.experiments import find_experiment, set_experiment_status
for verb, words in json.loads(sys.argv[1]).items():
    if verb == "sweep resume":
        with open_store(os.environ["WATTLOOP_STORE"]) as store:
            sweep = find_experiment(store, "last", "sweep")
            set_experiment_status(store, sweep.experiment_id, "stopped")
    os.write(1, f"\\n{mark} {verb}\\n".encode())
    code = main(words.split())
    os.write(1, f"\\n{mark} {code}\\n".encode())
""".replace("{mark}", MARK)


@pytest.fixture(scope="module")
def in_one_process(node: Machine) -> Callable[[Setting], dict[str, Shown]]:
    """Return the output of all verbs in a terminal, one after another in one process."""

    @functools.cache
    def show(setting: Setting) -> dict[str, Shown]:
        verbs = {
            verb: (DRAWN | PRINTED)[verb].replace("{setting}", str(setting))
            for verb, where in CASES + PRINTED_CASES
            if where == setting
        }
        if "bench again" in verbs:  # another worker may have the setting with `bench`
            verbs = {"bench": (DRAWN | PRINTED)["bench"], **verbs}
        command = [PYTHON, "-c", ONE_AFTER_ANOTHER, json.dumps(verbs)]
        raw = started(node, command, setting).raw
        parts = re.findall(rf"{MARK} (\D[^\r\n]*)\r\n(.*?)\r\n{MARK} (\d+)\r\n", raw, re.DOTALL)
        return {verb: Shown(int(code), text) for verb, text, code in parts}

    return show


@pytest.mark.parametrize(("verb", "setting"), CASES + PRINTED_CASES, ids=str)
def test_verb_in_a_terminal(
    in_one_process: Callable[[Setting], dict[str, Shown]], verb: str, setting: Setting
) -> None:
    """Promise: each verb ends well, its bars and tables fit, and it colours only where wanted."""
    # the noise of a program of milliseconds hides any loss
    codes = (1, 3) if verb == "check" else ()
    assert_fits(in_one_process(setting)[verb], setting, *codes)


def test_verb_in_a_process_of_its_own(node: Machine) -> None:
    """Promise: a command draws the same as the first of a process as after others."""
    for verb in ("sweep", "predict"):
        assert_fits(shown(node, DRAWN[verb], NARROW), NARROW)


EVERY_PAGE = """
import typer
from wattloop.cli.app import VERBS, app
from wattloop.cli.main import main
import importlib
def pages(command, path):
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from pages(each, (*path, name))
main(["--help"])
for verb, (module, _) in VERBS.items():
    own = importlib.import_module(f"wattloop.cli.commands.{module}").app
    for path in pages(typer.main.get_command(own), (verb,)):
        assert main([*path, "--help"]) == 0, path
"""


@pytest.mark.parametrize("setting", [NARROW, DUMB], ids=str)
def test_every_help_page_fits(node: Machine, setting: Setting) -> None:
    """Promise: each page of help fits the terminal, and has its usage and an example."""
    found = started(node, [PYTHON, "-c", EVERY_PAGE], setting)
    assert found.code == 0, found.text[-500:]
    lines = found.text.splitlines()
    assert [line for line in lines if len(line.rstrip()) > setting.columns] == []
    assert found.text.count("Usage: wattloop") > 80
    assert found.text.count("Example") > 80


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_question_is_asked_and_no_is_no(node: Machine, setting: Setting) -> None:
    """Promise: `runs delete` asks a person, and deletes nothing without a yes."""
    with open_store(node.store) as store:
        run_id = find_run(store, "first", by_name=True).run_id
    found = shown(node, f"runs delete {run_id}", setting, answer="n\n")
    assert "Delete 1 run(s)?" in found.text
    assert "nothing was deleted" in found.text
    assert found.code == 1


@pytest.mark.parametrize("setting", [NARROW, DUMB], ids=str)
def test_serve_prints_its_address_and_ends_on_ctrl_c(node: Machine, setting: Setting) -> None:
    """Promise: the dashboard names its address, and Ctrl-C ends it without a traceback."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    found = shown(node, "serve --port 0", setting, interrupt_after="Ctrl-C ends it")
    assert re.search(r"http://127\.0\.0\.1:\d+/", found.text)
    assert found.code in (0, 130), found.text


def test_agent_in_a_terminal(node: Machine) -> None:
    """Promise: Ctrl-C ends an agent in good order, and `agent status` shows what it left."""
    (node.folder / "agent.yaml").write_text(f"folder: {node.folder}/{{node}}\ninterval_s: 0.2\n")
    options = "--config agent.yaml --node n1"
    ended = shown(node, f"agent run {options}", NARROW, interrupt_after="Ctrl-C ends it")
    assert ended.code == 0, ended.text
    for setting in (NARROW, DUMB):
        found = shown(node, f"agent status {options}", setting)
        assert (found.code, "node n1:" in found.text) == (0, True), found.text


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_mistake_is_told_in_every_terminal(node: Machine, setting: Setting) -> None:
    """Promise: an unknown option is named, in a frame that fits; exit code 2."""
    found = shown(node, "runs list --nope", setting)
    assert "--nope" in found.text
    assert found.code == 2
    assert max(map(len, found.text.splitlines())) <= setting.columns


def test_data_in_a_file_stays_there_while_a_bar_is_drawn(node: Machine) -> None:
    """Promise: the output of a training in this process does not move to standard error."""
    (node.folder / "bar.py").write_text(
        "from wattloop.cli.progress import counted\n"
        "with counted('waiting [/b]', 2) as bar:\n    bar.advance()\n    print('data')\n"
    )
    command = ["sh", "-c", f"{PYTHON} bar.py > data.txt"]
    environment = {**node.environment, "TERM": "xterm"}
    found = in_terminal(command, environment, node.folder, 80)
    assert (found.code, (node.folder / "data.txt").read_text()) == (0, "data\n")
    assert "waiting [/b]" in found.text
