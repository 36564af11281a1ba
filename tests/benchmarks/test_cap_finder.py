from tests.benchmarks.running import run_benchmark


def test_without_data_it_says_what_to_set(tmp_path) -> None:
    """Promise: missing data gives a clear message."""
    done = run_benchmark("cap_finder", WATTLOOP_SHARED_DATA=str(tmp_path))
    assert done.returncode == 2
    assert "WATTLOOP_SHARED_DATA" in done.stderr
