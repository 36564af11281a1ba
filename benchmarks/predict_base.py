"""Constants of the H200 from microbenchmarks alone, kept on disk: no network was seen by them."""

import hashlib
import json
import sys

from predict_points import code_hash, suite_files, trace_folder
from wattloop.predict.models.kernels.constants import KernelConstants

__all__ = ["microbenchmark_constants"]


def microbenchmark_constants() -> KernelConstants | None:
    """Fitted to kernels, host calls and power runs of the suite; None where there is no suite.

    A fit takes a minute or two the first time.
    """
    files = suite_files()
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
