"""The H200's constants of the kernels model, made from everything measured on one.

    python benchmarks/predict_constants.py            what the fit says of left-out networks
    python benchmarks/predict_constants.py --ship     and write it into the package

Kernels from microbenchmarks; factors, host and joules from the steps of the twelve
networks and of the suite's own, each collection at the speed of its host; intervals from leaving
out each network in turn.
"""

import sys
from argparse import ArgumentParser

from predict_base import microbenchmark_constants
from predict_points import measured_points, own_points, steps_file, suite_files
from wattloop.predict.calibrate.fit import fitted_to_steps
from wattloop.predict.models.kernels.constants import SHIPPED


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ship", action="store_true", help="keep the constants in the package")
    args = parser.parse_args()
    path, base = steps_file(), microbenchmark_constants()
    if path is None or base is None:
        print("predict_constants: the measured steps or the suite's files are not here")
        return 0
    points = [measured.point for measured in measured_points(path)]
    points += [measured.point for measured in own_points(suite_files())]
    constants = fitted_to_steps(base, points)
    for name, speed in constants.made["hosts"].items():
        print(f"{name}: host speed {speed:.2f}")
    print(f"{len(points)} steps of {len(constants.made['models'])} networks")
    if args.ship:
        target = SHIPPED / f"{constants.gpu}.json.gz"
        constants.save(target)
        print(f"{target.name}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
