"""Generated runs with the shape of the source documents' data and known effects."""

import csv
import random
import sys
from itertools import product
from typing import Any

Row = dict[str, Any]

GREENSCREEN: dict[str, tuple[Any, ...]] = {
    "preprocessing": ("None", "minmax", "robust_scaling", "standardization"),
    "augmentation": ("None", "cutmix", "mixup", "random"),
    "batch_size": (4, 32, 64, 128),
    "lr": (0.00015, 0.0008, 0.00625, 0.01),
    "lr_schedule": ("constant", "cosine", "exponential", "polynomial"),
    "partitioning": ("60-20-20", "70-15-15", "80-10-10", "90-5-5"),
    "optimizer": ("Adam", "AdamW", "RMSProp", "SGD"),
    "optimizer_momentum": (0.0, 0.5, 0.9, 0.99),
    "internal": ("None", "jit_compilation", "post_quantization", "pre_quantization"),
    "precision": ("float16", "float32", "float64", "global_policy_float"),
}
"""Document 001, section 2.5: ten parameters of four levels."""

CALI3_TIME_S = {8: 1_523.0, 16: 1_281.0, 32: 1_165.0, 64: 1_110.0}
CALI3_ENERGY_WH = {8: 515.6, 16: 454.6, 32: 436.5, 64: 422.7}
CALI3_GPU = {8: 0.81, 16: 0.85, 32: 0.91, 64: 0.93}
CALI3_LOSS = {8: 0.1678, 16: 0.1662, 32: 0.1690, 64: 0.1710}
CALI3_ACCURACY = {8: 0.9436, 16: 0.9441, 32: 0.9430, 64: 0.9420}


def greenscreen_runs(count: int = 80, seed: int = 1) -> list[Row]:
    """Random search as in Burmester et al.: batch size determines the energy of an epoch."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        row: Row = {"run": number, **{k: rng.choice(v) for k, v in GREENSCREEN.items()}}
        wh = {4: 7.0, 32: 1.9, 64: 1.3, 128: 0.5}[row["batch_size"]]
        wh += 3.0 * (row["internal"] == "pre_quantization")
        wh = max(wh + rng.gauss(0, 0.3), 0.2)
        accuracy = 0.1 if row["batch_size"] == 4 else 0.45
        accuracy += 0.3 * (row["optimizer"] == "Adam") + rng.gauss(0, 0.08)
        row["train_accuracy"] = min(max(accuracy, 0.01), 0.99)
        row["val_accuracy"] = min(max(accuracy - 0.05, 0.01), 0.99)
        row["epochs"] = 50
        row["energy_wh"] = 50 * wh
        row["time_s"] = 50 * wh * 3_600 / 120
        rows.append(row)
    return rows


def cali3_runs(seed: int = 0) -> list[Row]:
    """The 400 runs of document 000: batch size and accumulation matter, three others do not."""
    rng = random.Random(seed)
    rows = []
    grid = product((8, 16, 32, 64), ("fp32", "fp16"), (1, 2, 4, 8, 16), (0, 512), (1, 2, 4, 8, 16))
    for number, (batch, precision, workers, tpu_cores, accumulation) in enumerate(grid):
        late = batch == 64 and accumulation == 16
        rows.append(
            {
                "number": number,
                "batch_size": batch,
                "precision": precision,
                "dataloader_workers": workers,
                "tpu_cores": tpu_cores,
                "gradient_accumulation_steps": accumulation,
                "eval_loss": (0.1895 if late else CALI3_LOSS[batch]) + rng.gauss(0, 0.0008),
                "accuracy": (0.9358 if late else CALI3_ACCURACY[batch]) + rng.gauss(0, 0.0005),
                "runtime_s": CALI3_TIME_S[batch] - 1.25 * accumulation + rng.gauss(0, 8),
                "energy_wh": CALI3_ENERGY_WH[batch] - 0.55 * accumulation + rng.gauss(0, 3),
                "cpu_efficiency": 0.56 + 0.01 * (batch == 8) + rng.gauss(0, 0.002),
                "gpu_efficiency": CALI3_GPU[batch] + rng.gauss(0, 0.006),
                "global_efficiency": CALI3_GPU[batch] - 0.08 + rng.gauss(0, 0.006),
            }
        )
    return rows


def main(which: str) -> None:
    """Write one of the tables as CSV to standard output."""
    rows = {"greenscreen": greenscreen_runs, "cali3": cali3_runs}[which]()
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1])
