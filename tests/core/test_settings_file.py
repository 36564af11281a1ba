"""Promises of the settings file: the right file is found, and its errors are named by line."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.settings import FIELDS, find_config, load_settings, read_config


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


FULL = """\
interval: 0.5
devices: [cpu, gpu:0]
meters: rapl,nvidia
pue: 1.4
zone: FRA
tariff:
  per_kwh: 0.25
  currency: CHF
carbon:
  g_per_kwh: 56
  url: https://example.org/now
  file: grid.csv
  provider: uk
store: data/runs.db
cpu_tdp_w: 120
dimms: 8x32
node: {overhead_w: 60, psu_efficiency: 0.92}
gauges:
  - {name: "node", path: /sys/class/hwmon/hwmon0/power1_input}
redfish_url: https://bmc.example.org
ipmi: yes
visa: USB0::1
replay: old.csv
virtual_gpus: 2
sampler: thread
share: process
retain: samples=30d
"""


def test_every_key_reaches_its_setting(tmp_path: Path) -> None:
    """All documented keys are read, paths are relative to the file, and lines are recorded."""
    path = write(tmp_path / "wattloop.yaml", FULL)
    settings = read_config(path)
    assert settings.interval_s == 0.5
    assert settings.devices == ("cpu", "gpu:0")
    assert settings.meters == ("rapl", "nvidia")
    assert (settings.tariff_per_kwh, settings.currency) == (0.25, "CHF")
    assert settings.store == str(tmp_path / "data" / "runs.db")
    assert settings.carbon_file == str(tmp_path / "grid.csv")
    assert settings.gauges[0]["name"] == "node"
    assert settings.ipmi is True
    assert settings.virtual_gpus == 2
    assert settings.sampler == "thread"
    assert settings.retain == "samples=30d"
    assert settings.sources["tariff_per_kwh"] == f"file {path}:7"
    assert set(settings.sources) == set(FIELDS.values())


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("interval: 1\nintervall: 2\n", 2, "did you mean 'interval'?"),
        ("tarif: 1\n", 1, "did you mean 'tariff"),
        ("tariff:\n  per_kWh: 1\n", 2, "did you mean 'tariff.per_kwh'?"),
        ("qqqq: 1\n", 1, "known are"),
        ("pue: 1.2\ninterval: fast\n", 2, "interval must be a number, not 'fast'"),
        ("interval: 0\n", 1, "between 0.001 and 3600"),
        ("interval: .nan\n", 1, "finite"),
        ("zone: no\n", 1, "zone must be text, not False; put it in quotes"),
        ("pue: 1\nzone: FRA\npue: 2\n", 3, "given twice, first on line 1"),
        ("gauges:\n  - name: a\n    name: b\n", 3, "given twice"),
        ("- a\n- b\n", 1, "write 'key: value' lines"),
        ("node: 5\n", 1, "node must be 'key: value' lines"),
        ("just words\n", 1, "write 'key: value' lines"),
        ("pue: [1, 2\n", 2, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML"),
        ("pue: !!python/object:os.system {}\n", 1, "not valid YAML"),
        ("gauges: 5\n", 1, "must be a list of gauges"),
        ("devices: {a: 1}\n", 1, "must be a list of names"),
    ],
)
def test_error_names_file_line_and_field(tmp_path: Path, text: str, line: int, wanted: str) -> None:
    """The message begins with FILE:LINE and says what is wrong and what is allowed."""
    path = write(tmp_path / "wattloop.yaml", text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert wanted in str(caught.value)


def test_empty_file_and_plain_tariff(tmp_path: Path) -> None:
    """An empty file changes nothing; `tariff: 0.3` is the price."""
    assert read_config(write(tmp_path / "a.yaml", "# nothing yet\n")).sources == {}
    assert read_config(write(tmp_path / "b.yaml", "tariff: 0.3\n")).tariff_per_kwh == 0.3


def test_binary_file_is_refused_without_a_traceback(tmp_path: Path) -> None:
    """A file that is not text is a ConfigError."""
    path = tmp_path / "wattloop.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(path)


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--config, WATTLOOP_CONFIG, the directory, its parents up to the git root, the user's own."""
    home = tmp_path / "home"
    project = home / "project"
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    env = {"HOME": str(home)}
    assert find_config(env) is None
    own = write(home / ".config" / "wattloop" / "wattloop.yaml", "pue: 1\n")
    assert find_config(env) == own
    top = write(home / "wattloop.yaml", "pue: 1\n")
    assert find_config(env) == top
    (project / ".git").mkdir()
    assert find_config(env) == own, "the search stops at the git root"
    root = write(project / "wattloop.yaml", "pue: 1\n")
    assert find_config(env) == root
    here = write(deep / "wattloop.yaml", "pue: 1\n")
    assert find_config(env) == here
    named = write(tmp_path / "x.yaml", "pue: 1\n")
    assert find_config({**env, "WATTLOOP_CONFIG": str(named)}) == named
    flag = write(tmp_path / "y.yaml", "pue: 1\n")
    assert find_config({**env, "WATTLOOP_CONFIG": str(named)}, str(flag)) == flag


def test_named_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """A wrong --config or WATTLOOP_CONFIG is an error."""
    with pytest.raises(ConfigError, match="--config"):
        find_config({}, str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="WATTLOOP_CONFIG"):
        find_config({"WATTLOOP_CONFIG": str(tmp_path)})


def test_environment_overrides_file(tmp_path: Path) -> None:
    """A variable overrides the file, and the source of the value is the variable."""
    path = write(tmp_path / "wattloop.yaml", "pue: 1.5\nzone: FRA\n")
    settings = load_settings({"WATTLOOP_PUE": "2"}, str(path))
    assert (settings.pue, settings.zone) == (2.0, "FRA")
    assert settings.sources["pue"] == "environment WATTLOOP_PUE"


def test_yaml_is_imported_only_when_there_is_a_file(tmp_path: Path) -> None:
    """Without a file the parser is not imported."""
    code = (
        "import sys; from wattloop.core.settings import load_settings; "
        "load_settings(); sys.exit('yaml' in sys.modules)"
    )
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PYTHONPATH": str(source)},
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_directory_that_may_not_be_read_holds_no_file() -> None:
    """Another user's $HOME is an example; a file named explicitly there is refused with the
    reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        (home / ".config").mkdir(parents=True)
        Path(folder).chmod(0o755)
        home.chmod(0o700)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setuid(65534)
                os.chdir("/")
                assert find_config({"HOME": str(home)}) is None
                with pytest.raises(ConfigError, match=r"--config: .* cannot be read: Permission"):
                    find_config({}, str(home / "wattloop.yaml"))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
