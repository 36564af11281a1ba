"""The stub of NVML, compiled once for each test module that uses it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml_stub import NoCompiler, StubNvml


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    try:
        StubNvml(folder)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    return folder


@pytest.fixture
def stub(folder: Path) -> Iterator[StubNvml]:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    with StubNvml(folder, gpus=2) as stub:
        pynvml.nvmlInit()
        yield stub
        pynvml.nvmlShutdown()
