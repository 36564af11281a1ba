"""Slow fits, stored on disk under a hash of their code and data.

`microbenchmark_constants`  of `kernels`, from microbenchmarks alone, without any network
`KeptAdept`                 the thesis's model, whose search takes seconds per fit
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Self

from predict_points import code_hash, kernel_files, trace_folder
from wattloop.predict.models.adept import Adept
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.model import MeasuredStep

__all__ = ["KeptAdept", "microbenchmark_constants"]


def microbenchmark_constants() -> KernelConstants | None:
    """Fitted to kernels, host calls and power runs; None without files of them.

    A fit takes some minutes the first time.
    """
    files = kernel_files()
    if not files:
        return None
    from wattloop.predict.calibrate.fit import fit_files

    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    code = code_hash("models/kernels", "calibrate", "workload")
    path = trace_folder() / f"microbenchmarks-{digest}-{code}.json"
    if path.is_file():
        return KernelConstants.from_plain(json.loads(path.read_text()), str(path))
    print("fitting the microbenchmarks", file=sys.stderr)
    constants = fit_files(files, steps=False).constants
    path.write_text(json.dumps(constants.to_plain()))
    return constants


class KeptAdept(Adept):
    """Adept with its fits stored on disk."""

    def fit(self, points: Sequence[MeasuredStep]) -> Self:
        """Fit, or read the stored fit to the same steps."""
        rows = [(p.workload.name, p.workload.batch, p.step_s, p.power_w) for p in points]
        key = repr((rows, self._search, self._saturation, self._scalars))
        digest = hashlib.sha256(key.encode()).hexdigest()[:12]
        code = code_hash("models/adept", "workload", "calibrate/zoo")
        path = trace_folder() / f"adept-{digest}-{code}.json"
        if path.is_file():
            return type(self).from_constants(json.loads(path.read_text()))
        fitted = super().fit(points)
        path.write_text(json.dumps(fitted.constants()))
        return fitted
