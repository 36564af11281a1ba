"""Promises of the Dockerfile and docs/container.md: the host is measured through its mounts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.power_curves import Constant
from tests.support.powercap_driver import Driver
from tests.support.powercap_tree import PowercapTree
from wattloop.core.settings import ENVIRONMENT

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def variables() -> dict[str, str]:
    """Return the variables that the image sets."""
    return dict(re.findall(r"\b(WATTLOOP_\w+)=(\S+)", DOCKERFILE))


def test_image_sets_variables_that_exist() -> None:
    """A renamed variable would measure the container instead of the host, without a message."""
    known = {*ENVIRONMENT, "WATTLOOP_SYSFS_ROOT", "WATTLOOP_PROCFS_ROOT"}
    assert set(variables()) <= known
    assert {"WATTLOOP_SYSFS_ROOT", "WATTLOOP_PROCFS_ROOT", "WATTLOOP_STORE"} <= set(variables())


def test_page_mounts_what_the_image_expects() -> None:
    """The commands in the page and the variables in the image name the same paths."""
    page = (ROOT / "docs" / "container.md").read_text()
    assert f"-v /sys:{variables()['WATTLOOP_SYSFS_ROOT']}:ro" in page
    assert f"-v /proc:{variables()['WATTLOOP_PROCFS_ROOT']}:ro" in page
    assert f":{Path(variables()['WATTLOOP_STORE']).parent}" in page


def test_image_copies_only_what_exists_and_installs_real_extras() -> None:
    """CI cannot build the image, so at least the named files and extras exist."""
    import tomllib

    for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
    extras = re.search(r"'\.\[(.+?)\]'", DOCKERFILE)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


def test_run_measures_the_host_through_its_mounts(tmp_path: Path) -> None:
    """With the image's variables moved below a folder, the host's counters are read."""
    moved = {name: f"{tmp_path}{path}" for name, path in variables().items()}
    package = PowercapTree(Path(moved["WATTLOOP_SYSFS_ROOT"])).add_package(0)
    Path(moved["WATTLOOP_PROCFS_ROOT"]).mkdir(parents=True)
    environment = {
        **os.environ,
        **moved,
        "PYTHONPATH": str(ROOT / "src"),
        "WATTLOOP_METERS": "rapl",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    environment.pop("WATTLOOP_JOB", None)
    with Driver({package: Constant(40.0)}):
        done = subprocess.run(
            [sys.executable, "-m", "wattloop.cli.main", "run", "--json", "-", "--", "sleep", "0.5"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [d["name"] for d in found["domains"]] == ["cpu:0/package"]
    assert 30.0 < found["energy_j"] / found["duration_s"] < 50.0
    assert Path(moved["WATTLOOP_STORE"]).exists()


def test_health_check_asks_a_server_and_leaves_other_verbs_alone(tmp_path: Path) -> None:
    """A server that answers or refuses is healthy; one that fails or hangs is not."""
    import runpy
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    assert "scripts/healthcheck.py" in DOCKERFILE.partition("HEALTHCHECK")[0]
    fault_of = runpy.run_path(str(ROOT / "scripts" / "healthcheck.py"))["fault_of"]

    class Answer(BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    port = str(server.server_address[1])
    command = ["python", "/usr/local/bin/wattloop", "serve", "--host", "0.0.0.0", "--port", port]
    for status, healthy in ((200, True), (401, True), (503, False)):
        Answer.status = status
        assert (fault_of(command) is None) is healthy, status
    server.shutdown()
    server.server_close()
    assert "refused" in fault_of([*command[:-2], f"--port={port}"])
    assert fault_of(["python", "/usr/local/bin/wattloop", "run", "--", "serve"]) is None
