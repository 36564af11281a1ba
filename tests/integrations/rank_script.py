"""Program of one rank of a measured job; torchrun or mpirun starts it in the tests."""

import json
import sys
import time
from pathlib import Path

from wattloop.integrations.distributed import measured_together
from wattloop.integrations.torch_loop import EnergyMeter


def main(backend: str, output: str) -> None:
    if backend == "torch":
        import torch.distributed

        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
    else:
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.Get_rank()
    time.sleep(0.1 * rank)  # they do not arrive together
    arrived_s = time.monotonic()
    with measured_together(EnergyMeter("job")) as job, job.meter.epoch():
        for _ in range(10):
            time.sleep(0.02 + 0.01 * rank)
            job.meter.step_done(loss=1.0)
        done_s = time.monotonic()
    facts = {
        "counted": job.meter.run is not None and job.meter.run.counted,
        "steps": len(job.meter.steps),
        "fault": job.meter.fault,
        "arrived_s": arrived_s,
        "done_s": done_s,
        "begin_s": job.meter.result.begin_s if job.meter.result else None,
        "end_s": job.meter.result.end_s if job.meter.result else None,
    }
    if job.energy is not None:
        facts |= {"job": job.energy.to_dict(), "table": job.energy.table()}
    Path(output, f"{rank}.json").write_text(json.dumps(facts))
    if backend == "torch":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
