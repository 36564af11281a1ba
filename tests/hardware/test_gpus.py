"""Promises of `gpus` and `gpu_files`: figures with sources, and names in common notations."""

import csv
import os
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import (
    DTYPES,
    FIELDS,
    SHIPPED,
    Gpu,
    gpu_named,
    known_gpus,
    read_user_gpu,
    variant_assumed,
)

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")


@pytest.fixture(autouse=True)
def _no_files_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def _own(tmp_path: Path, name: str, text: str) -> Path:
    folder = tmp_path / "config" / "wattloop" / "gpus"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_shipped_file_passes_the_checks_of_users_files() -> None:
    """Shipped files are read without checks, so they are checked here, with order and sizes."""
    assert len(list(SHIPPED.glob("*.yaml"))) >= 38
    for path in SHIPPED.glob("*.yaml"):
        checked = read_user_gpu(str(path), {})
        assert checked == gpu_named(path.stem), path
        assert checked.name == path.stem
        assert checked.vector_flops["fp32"] > 0
        assert checked.cap_min_w < checked.tdp_w <= checked.cap_max_w


def test_every_figure_has_a_source_that_is_not_the_file() -> None:
    """Provenance: a figure without a source of its own falls under `*`, which names a paper."""
    for gpu in known_gpus():
        assert "*" in gpu.sources
        for figure in FIELDS:
            assert gpu.source(figure), (gpu.name, figure)
        assert set(gpu.sources) <= {*FIELDS, "*"}
        assert (gpu.idle_w is None) or "idle_w" in gpu.sources


def test_peaks_follow_from_each_other() -> None:
    """Typing errors show: fp16 is at least tf32's rate, and matrix units exceed ordinary ones."""
    for gpu in known_gpus():
        matrix, vector = gpu.matrix_flops, gpu.vector_flops
        assert set(matrix) | set(vector) <= set(DTYPES)
        if "fp4" in matrix:
            assert matrix["fp4"] >= 1.9 * matrix["fp8"]
        if "fp16" in matrix:
            assert matrix["fp16"] >= 1.9 * matrix.get("tf32", 0)
            assert matrix["fp16"] > 1.9 * vector["fp32"]
        if "fp8" in matrix and gpu.name != "gaudi3":  # at the rate of bf16
            assert matrix["fp8"] == pytest.approx(2 * matrix["fp16"], rel=0.02)
        if gpu.vendor == "nvidia" and gpu.architecture != "kepler":
            per_clock = vector["fp32"] / (gpu.sms * gpu.boost_clock_mhz * 1e6)
            assert per_clock in (pytest.approx(128), pytest.approx(256)), gpu.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "h200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("A100-SXM4-40GB", "a100-sxm-40"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80"),
        ("a100 pcie 40", "a100-pcie-40"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32"),
        ("Tesla T4", "t4"),
        ("Quadro RTX 6000", "rtx6000"),
        ("RTX 6000", "rtx6000"),
        ("nvidia geforce rtx 3090", "rtx3090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Instinct MI210", "mi210"),
        ("L40S", "l40s"),
        ("l40", "l40"),
        ("H200 141GB", "h200"),
        ("Tesla K80 12 GB", "k80"),
        ("T4 16GB", "t4"),
        ("A100_80GB_PCIe", "a100-pcie-80"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("rtx 4090", "rtx4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA A10", "a10"),
        ("AMD Instinct MI355X OAM", "mi355x"),
        ("Intel Gaudi 3", "gaudi3"),
    ],
)
def test_names_in_notations_of_drivers_and_people(text: str, name: str) -> None:
    """Case, maker, punctuation and the number after SXM do not matter."""
    assert gpu_named(text).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100", "a100-sxm-80"),
        ("A100 40GB", "a100-sxm-40"),
        ("a100-pcie", "a100-pcie-80"),
        ("v100", "v100-sxm-32"),
        ("h100", "h100-sxm"),
        ("P100", "p100-sxm"),
    ],
)
def test_an_ambiguous_name_means_the_documented_variant_and_says_so(text: str, name: str) -> None:
    """The highest power limit, then the most memory; the others are named."""
    assert gpu_named(text).name == name
    assert name in variant_assumed(text)
    assert "others are" in variant_assumed(text)


def test_a_plain_name_assumes_nothing() -> None:
    """A name with one variant gives no message."""
    assert variant_assumed("h200") == ""
    assert variant_assumed("A100-SXM4-40GB") == ""


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("h201", "h200"),
        ("RTX 3090 Ti", "rtx3090"),
        ("a1000", "a100"),
        ("sxm", "known are"),
        ("80", "k80"),
        ("", "known are"),
        ("RTX 6000 Ampere", "rtx6000"),
    ],
)
def test_a_wrong_name_lists_near_and_known_ones(text: str, near: str) -> None:
    """Names are not guessed: `RTX 3090 Ti` is another GPU than `RTX 3090`."""
    with pytest.raises(ConfigError, match=near) as error:
        gpu_named(text)
    assert "mi300x" in str(error.value)


def test_a_users_file_changes_figures_of_a_known_gpu(tmp_path: Path) -> None:
    """Only the given figures change, and the source names the file."""
    path = _own(tmp_path, "h200", "tdp_w: 600\ncap_max_w: 600\n")
    gpu = gpu_named("h200")
    assert (gpu.tdp_w, gpu.cap_max_w, gpu.memory_bytes_s) == (600, 600, 4.8e12)
    assert str(path) in gpu.source("tdp_w")
    assert "data sheet" in gpu.source("memory_bytes_s")


def test_a_users_file_adds_a_gpu_like_another(tmp_path: Path) -> None:
    """`like` starts from a known GPU, and aliases are names of it; both are found."""
    _own(
        tmp_path,
        "h100-nvl",
        "like: h100-pcie\nproduct: NVIDIA H100 NVL\naliases: [hopper-pair]\n"
        "memory_bytes: 100e9\nsources:\n  memory_bytes: H100 NVL brief (2024)\n",
    )
    gpu = gpu_named("hopper pair")
    assert gpu == gpu_named("NVIDIA H100 NVL")
    assert (gpu.name, gpu.memory_bytes, gpu.sms) == ("h100-nvl", 1e11, 114)
    assert gpu.source("memory_bytes") == "H100 NVL brief (2024)"
    assert gpu_named("h100-pcie").memory_bytes != 1e11


def test_a_path_is_read_as_it_is(tmp_path: Path) -> None:
    """A file given directly needs no folder, and a change of it is noticed."""
    path = tmp_path / "mine.yaml"
    path.write_text("like: t4\nidle_w: 11\n", encoding="utf-8")
    assert (gpu_named(str(path)).name, gpu_named(str(path)).idle_w) == ("mine", 11)
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        gpu_named(str(tmp_path / "nowhere.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tdp_w: 700\nsms: many\n", r":2: sms: must be a number above 0, not 'many'"),
        ("tdp_w: 0\n", r":1: tdp_w: must be a number above 0"),
        ("link_bytes_s: -1\n", r":1: link_bytes_s: must be a number, 0 or more"),
        ("like: h300\n", r":1: like: is not a known GPU; did you mean 'h200'"),
        ("like: h200\ntdp: 5\n", r":2: tdp: is unknown; did you mean 'tdp_w'"),
        ("like: h200\nmatrix_flops: 3\n", r":2: matrix_flops: must be 'dtype"),
        ("like: h200\nvector_flops:\n  fp33: 3\n", r":3: vector_flops.fp33: is unknown; use fp64"),
        ("like: h200\ncap_min_w: 900\n", r":2: cap_min_w: cap_min_w 900 is above cap_max_w 700"),
        ("like: h200\nproduct: [1]\n", r":2: product: must be text"),
        ("like: h200\naliases: x\n", r":2: aliases: must be a list"),
        ("like: h200\nsources:\n  tdp: me\n", r":3: sources.tdp: did you mean 'tdp_w'"),
        ("like: h200\nlike: t4\n", r":2: 'like' is given twice"),
        ("tdp_w: 5\n", r"'mine' is not in the table.*give product, vendor"),
        ("like: h100\n", r":1: like: is not a known GPU; use h100-pcie or h100-sxm"),
        ("like: h200\n42: 1\n", r":2: 42: is unknown"),
        ("like: h200\nsms: 0.3\n", r":2: sms: must be a whole number"),
        ("like: h200\ntdp_w: 900\n", r":2: tdp_w: tdp_w 900 is above cap_max_w 700"),
        ("like: h200\ntdp_w: 150\n", r":2: tdp_w: cap_min_w 200 is above tdp_w 150"),
        ("like: h200\nidle_w: 701\n", r":2: idle_w: idle_w 701 is above tdp_w 700"),
        ("like: h200\nmemory_bytes: 80\n", r":2: memory_bytes: 80 is too little .* in bytes$"),
        ("like: h200\nmemory_bytes_s: 3350\n", r":2: .* it is in bytes per second$"),
        ("like: h200\nmatrix_flops: {bf16: 989}\n", r":2: matrix_flops.bf16: 989 .* FLOP/s$"),
        ("like: h200\nboost_clock_mhz: 1.98\n", r":2: boost_clock_mhz: 1.98 .* in MHz$"),
        ("like: h200\nvector_flops: {fp16: 1e12}\n", r":2: vector_flops: needs fp32"),
        ("- 3\n", r":1: write 'key: value' lines"),
        ("a: [\n", r"not valid YAML"),
    ],
)
def test_a_wrong_file_names_line_field_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    """Errors say what is wrong, where, and what to do."""
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        gpu_named(str(path))


def test_words_of_a_users_file_may_be_in_capitals(tmp_path: Path) -> None:
    """`GDDR6` equals `gddr6`: assumed idle power and architectures depend on these words."""
    path = tmp_path / "mine.yaml"
    path.write_text("like: h200\nmemory_type: GDDR6\narchitecture: Ada\n", encoding="utf-8")
    gpu = gpu_named(str(path))
    assert (gpu.memory_type, gpu.architecture) == ("gddr6", "ada")


def test_both_endings_of_yaml_are_looked_for(tmp_path: Path) -> None:
    """Figures of an unread file would be missing without a message."""
    _own(tmp_path, "mine", "like: t4\n").rename(
        tmp_path / "config" / "wattloop" / "gpus" / "mine.yml"
    )
    assert gpu_named("mine").sms == 40


def test_gpus_can_be_keys(tmp_path: Path) -> None:
    """Placements with GPUs are keys of caches, so GPUs are hashable, and equal files are equal
    keys.
    """
    again = read_user_gpu(str(SHIPPED / "h200.yaml"), {})
    assert {gpu_named("h200"): 1}[again] == 1


NEUSIGHT_DIFFERS = {
    ("AMD_Instinct_MI210", "l2_mb"): "it gives both dies of an MI250's",
    ("AMD_Instinct_MI250", "l2_mb"): "it gives both dies of an MI250's",
    ("NVIDIA_L4", "num_sm"): "the full AD104 has 60, the L4 58",
    ("Tesla_P4", "num_sm"): "20 SMs of 128 cores, written as 40 of 64",
}


@pytest.mark.skipif(
    not (SHARED / "neusight" / "devices.csv").is_file(), reason="NeuSight's table is not here"
)
def test_the_table_agrees_with_neusights() -> None:
    """An independent compilation of the same data sheets, apart from known differences."""
    with (SHARED / "neusight" / "devices.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if not row["gpu"].endswith("_TP")]
    assert len(rows) == 12
    for row in rows:
        gpu: Gpu = gpu_named(row["gpu"].replace("_", " "))
        ours = {
            "mem_gb": (gpu.memory_bytes / 2**30, 0.08),
            "mem_bw_gbs": (gpu.memory_bytes_s / 1e9, 0.03),
            "num_sm": (gpu.sms, 0.0),
            "l2_mb": (gpu.l2_bytes / 2**20, 0.0),
            "fp32_gflops": (gpu.vector_flops["fp32"] / 1e9, 0.035),
            "fp32_vec_gflops": (gpu.vector_flops["fp32"] / 1e9, 0.01),
            "fp32_mm_gflops": (gpu.matrix_flops.get("fp32", 0) / 1e9, 0.01),
            "tdp_w_not_from_neusight": (gpu.tdp_w, 0.0),
        }
        for column, (value, tolerance) in ours.items():
            if row[column] and (row["gpu"], column) not in NEUSIGHT_DIFFERS:
                assert value == pytest.approx(float(row[column]), rel=tolerance), (row, column)


def test_the_page_shows_the_current_table() -> None:
    """docs/gpus.md has one row per GPU with its figures."""
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    rows = {
        cells[0].strip("`"): cells
        for cells in ([c.strip() for c in line.split("|")[1:-1]] for line in page.splitlines())
        if cells and cells[0].startswith("`")
    }
    assert set(rows) == {gpu.name for gpu in known_gpus()}
    for gpu in known_gpus():
        cells = rows[gpu.name]
        fp32 = max(gpu.vector_flops["fp32"], gpu.matrix_flops.get("fp32", 0))
        assert cells[1] == gpu.product
        assert cells[2] == _figure(fp32 / 1e12)
        for dtype, cell in zip(("tf32", "bf16", "fp16", "fp8", "fp4"), cells[3:8], strict=True):
            peak = gpu.matrix_flops.get(dtype)
            assert cell == (_figure(peak / 1e12) if peak else ""), (gpu.name, dtype)
        assert cells[8:12] == [
            f"{gpu.memory_bytes / 2**30:.3g} GiB {gpu.memory_type}",
            f"{gpu.memory_bytes_s / 1e9:.0f}",
            str(gpu.sms),
            f"{gpu.boost_clock_mhz:.0f}",
        ]
        assert cells[12:14] == [f"{gpu.tdp_w:g}", f"{gpu.cap_min_w:g} to {gpu.cap_max_w:g}"]
        assert cells[14] == ("" if gpu.idle_w is None else f"{gpu.idle_w:g}")
        assert cells[15] == f"{gpu.link_bytes_s / 1e9:g}"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def test_the_files_of_the_page_are_read(tmp_path: Path) -> None:
    """Its YAML blocks have the effect that the page states; its wrong one gives its message."""
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    change, add = (block.split("```")[0] for block in page.split("```yaml\n")[1:])
    _own(tmp_path, "h200", change)
    path = _own(tmp_path, "h100-nvl", add)
    assert (gpu_named("h200").tdp_w, gpu_named("NVIDIA H100 NVL").tdp_w) == (600, 400)
    path.write_text(add.replace("memory_bytes_s", "memory_byte_s"), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        gpu_named("h100-nvl")
    message = str(error.value).rpartition("/")[2]
    assert message in page


@pytest.mark.parametrize("name", ["{path}", "{relative}"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    """Promise: only a name that ends in .yaml is a file; other names may come from a page's
    address.
    """
    (tmp_path / "mine.yaml").write_text((SHIPPED / "h200.yaml").read_text())
    relative = os.path.relpath(tmp_path / "mine", SHIPPED)
    with pytest.raises(ConfigError, match="no GPU called"):
        gpu_named(name.format(path=tmp_path / "mine", relative=relative))
