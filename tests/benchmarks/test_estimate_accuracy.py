import json
import subprocess

from tests.benchmarks.running import run_benchmark


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_benchmark("estimate_accuracy", *arguments, **environment)


def test_other_and_unknown_processors_can_be_tried(tmp_path) -> None:
    """Promise: a file with an unknown processor name gives bars, not a crash."""
    rows = [
        f"Strange CPU 9,{kind},{n},{12.5 * n},{1000 + 250 * n},{5 + 5 * n},{6 * n},30"
        for kind in ("all_cores", "some_cores")
        for n in range(9)
    ]
    header = "cpu_name,load_type,cores_used,cpu_load,cpu_freq,rapl_power,estimated_power,duration"
    (tmp_path / "x.csv").write_text("\n".join([header, *rows]) + "\n")
    done = run("--csv", str(tmp_path / "x.csv"), "--json", str(tmp_path / "x.json"))
    assert done.returncode == 0, done.stderr
    names = {bar["name"] for bar in json.loads((tmp_path / "x.json").read_text())["bars"]}
    assert "estimate_held_out_error" in names


def test_without_data_it_says_what_to_set(tmp_path) -> None:
    """Promise: missing data gives a clear message."""
    done = run(WATTLOOP_SHARED_DATA=str(tmp_path))
    assert done.returncode == 2
    assert "WATTLOOP_SHARED_DATA" in done.stderr
