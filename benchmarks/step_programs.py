"""Steps of public training programs under `wattloop run`, against the programs' own counts.

    python benchmarks/step_programs.py REPOSITORIES          # print
    python benchmarks/step_programs.py REPOSITORIES --page   # and write its page
    python benchmarks/step_programs.py REPOSITORIES --only nanoGPT

REPOSITORIES is a folder with clones of karpathy/nanoGPT, pytorch/examples, keras-team/keras,
keras-team/keras-io, huggingface/transformers, huggingface/trl and
Lightning-AI/pytorch-lightning. A program whose repository or package is missing is left out, and
the page says so. Programs run unchanged on the CPU, once alone and once under `wattloop run`, on
counters that a driver advances (a square wave of 40 and 120 W). Nothing is downloaded: texts are
Python's own library, models are small ones with random weights, and `program_stand_ins` serves
generated images in the place of torchvision.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "step_programs.md"
STAND_INS = ROOT / "benchmarks" / "program_stand_ins"
PYTHON = sys.executable
LONGEST_S = 3_600

Count = Callable[[str, Path], int]


@dataclass(frozen=True)
class Program:
    """A public program.

    Attributes:
        repository: name of its clone, empty for a program of this file.
        command: words after the interpreter; `{repo}` is the clone, `{work}` the working folder.
        steps: the program's own count, from its output and working folder.
        tokens: tokens by the program's trainer, where it counts them.
        needs: packages without which it cannot run.
        prepare: what its working folder has to contain, by the names of `PREPARED`.
        ranks: whether several processes print.
        stand_ins: folders of `program_stand_ins` that it finds first.
        repeats: whether it prints the same in each run; without a seed it does not.
    """

    name: str
    repository: str
    command: Sequence[str]
    steps: Count
    tokens: Count | None = None
    needs: Sequence[str] = ("torch",)
    prepare: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    stand_ins: Sequence[str] = ()
    ranks: bool = False
    repeats: bool = True


class Seen(NamedTuple):
    """Result of a program without and with `wattloop run`."""

    program: Program
    commit: str
    own_steps: int | None = None
    steps: int | None = None
    own_tokens: int | None = None
    tokens: float | None = None
    balance: float | None = None
    same_exit: bool = False
    same_output: bool = False
    why: str = ""

    @property
    def exact(self) -> bool:
        return (
            self.own_steps is not None
            and self.own_steps == self.steps
            and (self.own_tokens is None or self.own_tokens == self.tokens)
            and self.balance is not None
            and abs(self.balance) <= 0.005
            and self.same_exit
            and (self.same_output or not self.program.repeats)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repositories", type=Path, help="folder of the clones")
    parser.add_argument("--only", action="append", default=[], help="part of a program's name")
    parser.add_argument("--keep", type=Path, help="folder for outputs and results, to resume")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    chosen = [p for p in PROGRAMS if not options.only or any(o in p.name for o in options.only)]
    results = []
    with _counters() as sysfs:
        for program in chosen:
            begin_s = time.monotonic()
            seen = _kept(program, options.keep)
            if seen is None:
                seen = try_program(program, options.repositories.resolve(), sysfs, options.keep)
                print(f"{_row(seen)} {time.monotonic() - begin_s:.0f} s", flush=True)
                _keep(seen, options.keep)
            results.append(seen)
    text = page(results)
    if options.page:
        PAGE.write_text(text, encoding="utf-8")
    print(text)


def _keep(seen: Seen, folder: Path | None) -> None:
    """Write a result, so that an interrupted benchmark continues after it."""
    if folder is not None and not seen.why:
        path = folder / f"{_file_name(seen.program)}.result.json"
        path.write_text(json.dumps(seen._replace(program=seen.program.name)))  # type: ignore[arg-type]


def _kept(program: Program, folder: Path | None) -> Seen | None:
    path = None if folder is None else folder / f"{_file_name(program)}.result.json"
    if path is None or not path.exists():
        return None
    _, *values = json.loads(path.read_text())
    return Seen(program, *values)


def _file_name(program: Program) -> str:
    return re.sub(r"\W+", "_", program.name)


def try_program(program: Program, clones: Path, sysfs: Path, keep: Path | None) -> Seen:
    repo = clones / program.repository if program.repository else ROOT
    lacking = [name for name in program.needs if find_spec(name) is None]
    if lacking or not repo.is_dir():
        return Seen(program, "", why=f"not here: {', '.join(lacking) or program.repository}")
    commit = _output(["git", "-C", str(repo), "rev-parse", "--short=10", "HEAD"]).strip()
    with tempfile.TemporaryDirectory(prefix="step-programs-") as folder:
        alone, measured = Path(folder, "alone"), Path(folder, "measured")
        alone.mkdir()
        for name in program.prepare:
            PREPARED[name](alone, repo)
        shutil.copytree(alone, measured)
        words = [w.format(repo=repo, work=".") for w in program.command]
        command = [PYTHON, *words]
        plain = _run(program, command, alone, sysfs)
        wrapped = [PYTHON, "-m", "wattloop", "run", "--quiet", "--json", "run.json", "--"]
        done = _run(program, [*wrapped, *command], measured, sysfs)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for label, each in (("alone", plain), ("measured", done)):
                name = f"{_file_name(program)}_{label}"
                (keep / f"{name}.txt").write_text(each.stdout + "\n=== stderr\n" + each.stderr)
            if (measured / "run.json").exists():
                shutil.copy(measured / "run.json", keep / f"{name}.json")
        if plain.returncode:
            last = (plain.stderr.strip() or plain.stdout.strip()).splitlines()[-1:]
            return Seen(program, commit, why=f"fails alone: {' '.join(last)[:200]}")
        data = json.loads((measured / "run.json").read_text(encoding="utf-8"))
        totals = data["step_totals"] or {"steps": 0, "tokens": None, "phases": []}
        energy_j = _steps_and_phases_j(measured / "runs.db", data["run_id"], totals["phases"])
        return Seen(
            program,
            commit,
            own_steps=program.steps(done.stdout, measured),
            steps=totals["steps"],
            own_tokens=None if program.tokens is None else program.tokens(done.stdout, measured),
            tokens=totals["tokens"],
            balance=energy_j / data["energy_j"] - 1,
            same_exit=plain.returncode == done.returncode,
            same_output=_comparable(program, plain.stdout) == _comparable(program, done.stdout),
        )


def _steps_and_phases_j(path: Path, run_id: str, phases: Sequence[dict[str, Any]]) -> float:
    """Return the energy of all steps as stored, and of the phases outside of steps."""
    from wattloop.integrations.stored_steps import read_step_points
    from wattloop.store.database import open_store
    from wattloop.store.runs import find_run

    with open_store(path) as store:
        points = read_step_points(store, find_run(store, run_id))
    in_steps = ("training", "waiting for data")
    outside = [float(p["energy_j"]) for p in phases if p["name"] not in in_steps]
    return sum(point.energy_j or 0.0 for point in points) + sum(outside)


def _run(
    program: Program, command: Sequence[str], work: Path, sysfs: Path
) -> "subprocess.CompletedProcess[str]":
    path = [str(STAND_INS / name) for name in program.stand_ins]
    path.append(os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(work / "hf"),
        "TOKENIZERS_PARALLELISM": "false",
        "WATTLOOP_STORE": str(work / "runs.db"),
        "WATTLOOP_SYSFS_ROOT": str(sysfs),
        "WATTLOOP_METERS": "rapl",
        **program.environment,
    }
    environment.pop("WATTLOOP_DEVICES", None)
    return subprocess.run(
        command,
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


@contextmanager
def _counters() -> Iterator[Path]:
    """Run counters in a process of their own."""
    with tempfile.TemporaryDirectory(prefix="step-programs-sys-") as folder:
        command = [PYTHON, str(ROOT / "benchmarks" / "powercap_counters.py"), folder, "86400"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield Path(folder)
            finally:
                process.terminate()


# Times, rates and file names differ from run to run; progress bars depend on time.
VARIABLE = (
    (re.compile(r"[^\n]*[\r\x08]+"), ""),
    (re.compile(r"'?\w*(runtime|_per_second|per_sec\w*)'?:\s*'?[\d.e+-]+'?"), "RATE"),
    (re.compile(r"\d+(\.\d+)?\s*(ms|s|us|it|min)\b(/(step|it|s|batch))?"), "TIME"),
    (re.compile(r"ms/batch\s+[\d.]+|time: *[\d.]+|mfu -?[\d.]+%"), "TIME"),
    (re.compile(r"/tmp/\S+|0x[0-9a-f]+|port \d+|:\d{4,5}\b"), "NAME"),
    (re.compile(r"(\d{4}-\d\d-\d\d|\d\d/\d\d/\d{4})[ T]\d\d:\d\d:\d\d([.,]\d+)?"), "DATE"),
    (re.compile(r"\d+:\d\d:\d\d(\.\d+)?|default-[0-9a-f]{16}"), "VARIES"),
    (re.compile(r"(runtime|per_second) += +\S+"), "RATE"),
)


def _comparable(program: Program, text: str) -> list[str]:
    for pattern, name in VARIABLE:
        text = pattern.sub(name, text)
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not program.ranks:
        return found
    # Whichever rank comes first prepares the data; ranks print into each other's lines.
    text = "\n".join(line for line in found if "datasets." not in line)
    return sorted(re.findall(r"[\w.-]+", text))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def page(results: Sequence[Seen]) -> str:
    tried = [r for r in results if not r.why]
    exact = sum(r.exact for r in tried)
    names = ("program", "source", "own steps", "seen", "own tokens", "seen", "energy balance")
    head = f"| {' | '.join((*names, 'exit', 'output'))} |"
    balances = [abs(r.balance) for r in tried if r.balance is not None]
    notes = [f"- {r.program.name}: {r.why}." for r in results if r.why]
    return "\n".join(
        [
            "# Steps of public programs, without a change to them",
            "",
            f"{exact} of {len(tried)} programs: the steps that `wattloop run` saw are the "
            "program's own count, tokens are those of its trainer, energies of the stored steps "
            "and of the phases around them add up to that of the run (asked: within 0.5%; worst: "
            f"{max(balances, default=0.0):.2%}), exit code and output are those of the program "
            "alone.",
            "",
            head,
            "|---|---|---|---|---|---|---|---|---|",
            *[_row(r) for r in tried],
            "",
            *(["Not run:", "", *notes, ""] if notes else []),
            "On a CPU, with powercap counters that a driver advances. Each program runs alone and "
            "under `wattloop run`, with the same arguments; outputs are compared without times, "
            "rates, dates and progress bars. Nothing is downloaded: texts are Python's own "
            "library, models are small, with random weights and a vocabulary of that text. "
            "torchvision is a stand-in that serves generated images, and evaluate one that "
            "computes accuracy (`benchmarks/program_stand_ins`). Programs without a source are a "
            "few lines of `benchmarks/step_programs.py`: what they show is not in a public "
            "program that runs on a CPU.",
            "",
            "The own count is what the program prints per step, the last step of its checkpoint, "
            "or `trainer_state.json` of a Trainer.",
            "",
            "Written by `python benchmarks/step_programs.py REPOSITORIES --page`.",
            "",
        ]
    )


def _row(seen: Seen) -> str:
    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}"

    source = f"{seen.program.repository} {seen.commit}" if seen.program.repository else "own"
    if seen.why:
        return f"| {seen.program.name} | {source} | {seen.why} |"
    cells = [
        seen.program.name,
        source,
        shown(seen.own_steps),
        shown(seen.steps),
        shown(seen.own_tokens),
        shown(seen.tokens),
        "" if seen.balance is None else f"{seen.balance:+.2%}",
        "same" if seen.same_exit else "**differs**",
        "same" if seen.same_output else "**differs**" if seen.program.repeats else "random",
    ]
    return f"| {' | '.join(cells)} |"


# -- own counts ----------------------------------------------------------------------------------


def lines(pattern: str) -> Count:
    """Count the lines that contain a pattern."""
    return lambda output, _: len(re.findall(pattern, output))


def last_number(pattern: str) -> Count:
    """Return the number in the last place of the pattern."""
    return lambda output, _: int(re.findall(pattern, output)[-1])


def word_language_model(output: str, _: Path) -> int:
    """Its batches are numbered from 0, and each but the first of an epoch is printed."""
    batches = re.findall(r"\| epoch +(\d+) \| +(\d+)/", output)
    return sum(
        max(int(b) for e, b in batches if e == epoch) + 1 for epoch in {e for e, _ in batches}
    )


def trainer_state(name: str) -> Count:
    """Read a number that Hugging Face's Trainer has stored, or logged last."""

    def count(_: str, work: Path) -> int:
        states = sorted(work.glob("out/**/trainer_state.json"), key=lambda p: p.stat().st_mtime)
        state = json.loads(states[-1].read_text(encoding="utf-8"))
        logged = [entry[name] for entry in state["log_history"] if name in entry]
        return int(logged[-1] if logged else state[name])

    return count


def lightning_checkpoint(_: str, work: Path) -> int:
    """Read the number of steps in the name of the last checkpoint."""
    found = [re.search(r"step=(\d+)", p.name) for p in work.glob("lightning_logs/**/*.ckpt")]
    return max(int(match[1]) for match in found if match)


def keras_batches(output: str, _: Path) -> int:
    """Add the batches of each epoch of `fit`: the last state of its progress bars."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    epochs = re.split(r"Epoch \d+/\d+", plain)[1:]
    return sum(int(re.findall(r"(\d+)/\1 ", epoch)[0]) for epoch in epochs)


# -- working folders -----------------------------------------------------------------------------


def library_text(*names: str) -> str:
    folder = Path(sysconfig.get_path("stdlib"))
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def nanogpt_data(work: Path, repo: Path) -> None:
    """Encode Python source as characters, in the form of nanoGPT's own data sets."""
    import pickle
    from array import array

    left_out = shutil.ignore_patterns(".git", "assets", "*.ipynb")
    shutil.copytree(repo, work, ignore=left_out, dirs_exist_ok=True)
    text = library_text("argparse.py", "ast.py")
    characters = sorted(set(text))
    numbers = {character: i for i, character in enumerate(characters)}
    folder = work / "data" / "library"
    folder.mkdir(parents=True)
    split = len(text) * 9 // 10
    for name, part in (("train", text[:split]), ("val", text[split:])):
        (folder / f"{name}.bin").write_bytes(array("H", [numbers[c] for c in part]).tobytes())
    meta = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": numbers}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def words(work: Path, repo: Path) -> None:
    folder = work / "words"
    folder.mkdir()
    text = library_text("argparse.py").splitlines()
    for name, part in (("train", text[:500]), ("valid", text[500:600]), ("test", text[600:700])):
        (folder / f"{name}.txt").write_text("\n".join(part), encoding="utf-8")


def samples_folder(work: Path, repo: Path) -> None:
    (work / "results").mkdir()


def small_models(work: Path, repo: Path) -> None:
    """Write a tokenizer and small models with random weights, under the names programs ask for."""
    code = """
import sys, torch, transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
text = sys.stdin.read().split("\\n")
torch.manual_seed(0)
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
tokenizer.train_from_iterator(text, trainer)
fast = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
    sep_token="[SEP]", mask_token="[MASK]", eos_token="[SEP]", bos_token="[CLS]",
    model_max_length=64)
sizes = dict(vocab_size=len(fast), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
             intermediate_size=64, max_position_embeddings=128)
bert = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    **sizes, num_key_value_heads=2, pad_token_id=0, bos_token_id=2, eos_token_id=3))
for name, model in (("bert-base-cased", bert), ("tiny-llama", llama)):
    model.save_pretrained(name)
    fast.save_pretrained(name)
"""
    subprocess.run(
        [PYTHON, "-c", code],
        cwd=work,
        input=library_text("argparse.py"),
        capture_output=True,
        text=True,
        check=True,
    )


def texts(work: Path, repo: Path) -> None:
    """Write lines of source: as text, as sentences with a class, and as a folder of a data set."""
    found = [line.strip() for line in library_text("argparse.py", "ast.py").splitlines()]
    found = [line for line in found if len(line) > 20][:240]
    (work / "train.txt").write_text("\n".join(found), encoding="utf-8")
    for name, part in (("train", found[:160]), ("validation", found[160:200])):
        rows = [{"sentence": line, "label": int("def" in line)} for line in part]
        text = "\n".join(map(json.dumps, rows))
        (work / f"{name}.json").write_text(text, encoding="utf-8")
    (work / "sentences").mkdir()
    text = "\n".join(json.dumps({"text": line}) for line in found[:96])
    (work / "sentences" / "train.jsonl").write_text(text, encoding="utf-8")


def scaler_program(work: Path, repo: Path) -> None:
    (work / "scaler.py").write_text(SCALER, encoding="utf-8")


PREPARED = {
    each.__name__: each
    for each in (
        *(nanogpt_data, words, samples_folder, small_models, texts),
        scaler_program,
    )
}

SCALER = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20)
taken = 0
for i in range(120):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    if i % 10 == 3:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    before = [p.detach().clone() for p in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    taken += any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
print("updates", taken, model.weight.sum().item())
"""

NANOGPT = (
    *("train.py", "--dataset=library", "--device=cpu", "--compile=False", "--log_interval=1"),
    *("--eval_iters=2", "--eval_interval=10", "--block_size=32", "--batch_size=4", "--n_layer=2"),
    *("--n_head=2", "--n_embd=32", "--max_iters=40", "--lr_decay_iters=40", "--dropout=0.0"),
    "--always_save_checkpoint=True",
)
"""It finds its other files in the current folder, which is a copy of the clone."""
TRAINER = (
    *("--output_dir", "out", "--use_cpu", "true", "--report_to", "none", "--logging_steps", "2"),
    *("--include_num_input_tokens_seen", "true", "--num_train_epochs", "2", "--save_steps", "10"),
    *("--seed", "1", "--disable_tqdm", "true"),
)
CLM = (
    *("{repo}/examples/pytorch/language-modeling/run_clm.py", "--model_name_or_path", "tiny-llama"),
    *("--train_file", "train.txt", "--do_train", "--do_eval", "--block_size", "32"),
    *("--per_device_train_batch_size", "4", *TRAINER),
)
SFT = (
    *("{repo}/trl/scripts/sft.py", "--model_name_or_path", "tiny-llama", "--dtype", "float32"),
    *("--dataset_name", "sentences", "--output_dir", "out", "--use_cpu", "true"),
    *("--report_to", "none", "--logging_steps", "1", "--max_steps", "12", "--max_length", "32"),
    *(
        "--per_device_train_batch_size",
        "4",
        "--gradient_accumulation_steps",
        "2",
        "--bf16",
        "false",
    ),
    *("--disable_tqdm", "true", "--gradient_checkpointing", "false"),
)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
AUTOENCODER = (
    *("{repo}/examples/pytorch/basics/autoencoder.py", "--trainer.max_epochs", "2"),
    *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
    *("--trainer.logger.class_path", "lightning.pytorch.loggers.CSVLogger"),
    *("--trainer.logger.init_args.save_dir", ".", "--trainer.limit_train_batches", "40"),
    *("--trainer.limit_val_batches", "5", "--trainer.limit_test_batches", "5"),
    *("--trainer.limit_predict_batches", "5"),
)
LIGHTNING: dict[str, Any] = {
    "needs": ("torch", "lightning", "jsonargparse"),
    "stand_ins": ("images",),
    "environment": {"STAND_IN_IMAGES": "60000"},
}
MODELS = ("torch", "transformers", "datasets", "accelerate")

PROGRAMS = (
    Program(
        "nanoGPT",
        "nanoGPT",
        (*NANOGPT, "--gradient_accumulation_steps=1"),
        lines(r"(?m)^iter \d+: loss"),
        prepare=("nanogpt_data",),
    ),
    Program(
        "nanoGPT, gradients of 4 batches",
        "nanoGPT",
        (*NANOGPT, "--gradient_accumulation_steps=4"),
        lines(r"(?m)^iter \d+: loss"),
        prepare=("nanogpt_data",),
    ),
    Program(
        "mnist",
        "examples",
        ("{repo}/mnist/main.py", "--epochs", "2", "--log-interval", "1", "--save-model"),
        lines(r"Train Epoch: "),
        stand_ins=("images",),
    ),
    Program(
        "vae",
        "examples",
        ("{repo}/vae/main.py", "--epochs", "2", "--log-interval", "1", "--batch-size", "128"),
        lines(r"Train Epoch: "),
        prepare=("samples_folder",),
        stand_ins=("images",),
    ),
    Program(
        "dcgan (two optimizers)",
        "examples",
        (
            *("{repo}/dcgan/main.py", "--dataset", "fake", "--niter", "1", "--outf", "."),
            *("--imageSize", "64", "--batchSize", "16", "--ngf", "8", "--ndf", "8"),
            *("--workers", "0", "--manualSeed", "1"),
        ),
        lines(r"Loss_D: "),
        environment={"STAND_IN_IMAGES": "480"},
        stand_ins=("images",),
    ),
    Program(
        "word_language_model (weights updated by hand)",
        "examples",
        (
            *("{repo}/word_language_model/main.py", "--data", "words", "--epochs", "2"),
            *("--log-interval", "1", "--emsize", "32", "--nhid", "32", "--batch_size", "4"),
            *("--bptt", "10"),
        ),
        word_language_model,
        prepare=("words",),
    ),
    Program(
        "regression (weights updated by hand)",
        "examples",
        ("{repo}/regression/main.py",),
        last_number(r"after (\d+) batches"),
        repeats=False,
    ),
    Program(
        "Trainer, text classification",
        "transformers",
        (
            "{repo}/examples/pytorch/text-classification/run_classification.py",
            *("--model_name_or_path", "bert-base-cased", "--train_file", "train.json"),
            *("--validation_file", "validation.json", "--text_column_names", "sentence"),
            *("--label_column_name", "label", "--do_train", "--do_eval", "--max_seq_length", "32"),
            *("--per_device_train_batch_size", "8", "--eval_strategy", "epoch", *TRAINER),
        ),
        trainer_state("global_step"),
        trainer_state("num_input_tokens_seen"),
        needs=MODELS,
        prepare=("small_models", "texts"),
        stand_ins=("metrics",),
    ),
    Program(
        "Trainer, causal language model, gradients of 2 batches",
        "transformers",
        (*CLM, "--gradient_accumulation_steps", "2"),
        trainer_state("global_step"),
        trainer_state("num_input_tokens_seen"),
        needs=MODELS,
        prepare=("small_models", "texts"),
        stand_ins=("metrics",),
    ),
    Program(
        "torchrun, DDP of two ranks (causal language model)",
        "transformers",
        (*TORCHRUN, *CLM),
        trainer_state("global_step"),
        trainer_state("num_input_tokens_seen"),
        needs=MODELS,
        ranks=True,
        prepare=("small_models", "texts"),
        stand_ins=("metrics",),
    ),
    Program(
        "TRL SFT with LoRA",
        "trl",
        (*SFT, "--use_peft", "--lora_r", "4"),
        trainer_state("global_step"),
        trainer_state("num_tokens"),
        needs=(*MODELS, "trl", "peft"),
        prepare=("small_models", "texts"),
        stand_ins=("metrics",),
    ),
    Program(
        "TRL SFT with torch.compile",
        "trl",
        (*SFT, "--torch_compile", "true"),
        trainer_state("global_step"),
        trainer_state("num_tokens"),
        needs=(*MODELS, "trl"),
        prepare=("small_models", "texts"),
        stand_ins=("metrics",),
    ),
    Program(
        "Lightning, one process (autoencoder)",
        "pytorch-lightning",
        (*AUTOENCODER, "--trainer.devices", "1"),
        lightning_checkpoint,
        **LIGHTNING,
    ),
    Program(
        "Lightning, two processes (autoencoder)",
        "pytorch-lightning",
        (*AUTOENCODER, "--trainer.devices", "2", "--trainer.strategy", "ddp"),
        lightning_checkpoint,
        ranks=True,
        **LIGHTNING,
    ),
    Program(
        "accelerate without a Trainer, gradients of 2 batches",
        "transformers",
        (
            "{repo}/examples/pytorch/text-classification/run_glue_no_trainer.py",
            *("--model_name_or_path", "bert-base-cased", "--train_file", "train.json"),
            *("--validation_file", "validation.json", "--max_length", "32", "--seed", "1"),
            *("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "2"),
            *("--num_train_epochs", "2", "--output_dir", "out", "--checkpointing_steps", "1"),
        ),
        # It writes a checkpoint after each of its steps.
        lambda _, work: len(list(work.glob("out/step_*"))),
        needs=MODELS,
        prepare=("small_models", "texts"),
        stand_ins=("metrics",),
    ),
    Program(
        "Keras on torch (demo_subclass)",
        "keras",
        ("{repo}/examples/demo_subclass.py",),
        keras_batches,
        needs=("keras", "torch"),
        environment={"KERAS_BACKEND": "torch"},
        repeats=False,
    ),
    Program(
        "Keras on JAX (custom_train_step_in_jax)",
        "keras-io",
        ("{repo}/guides/custom_train_step_in_jax.py",),
        keras_batches,
        needs=("keras", "jax"),
        environment={"KERAS_BACKEND": "jax"},
        repeats=False,
    ),
    Program(
        "GradScaler that skips updates",
        "",
        ("scaler.py",),
        last_number(r"updates (\d+)"),
        prepare=("scaler_program",),
    ),
)


if __name__ == "__main__":
    main()
