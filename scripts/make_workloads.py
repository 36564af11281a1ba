"""Trace the models of the thesis's scenario and write their workloads into the package.

python scripts/make_workloads.py, from the root of the repository; needs the extras torch and hf.
With them `wattloop simulate` predicts the thesis's jobs on a machine without torch.
"""

from pathlib import Path

import yaml

from wattloop.predict.request import request_workload
from wattloop.predict.workload.files import save_workload
from wattloop.schedule.estimates.analytic import SHIPPED, predict_question, shipped_workload
from wattloop.schedule.jobs.kind import JobKind

TEMPLATES = Path(__file__).parents[1] / "src/wattloop/schedule/scenarios/thesis_templates.yaml"


def main() -> None:
    """Write one file per model and batch; others are removed."""
    SHIPPED.mkdir(exist_ok=True)
    written = set()
    for entry in yaml.safe_load(TEMPLATES.read_text())["models"]:
        kind = JobKind(entry["model"], entry["precision"], sequence=entry.get("sequence"))
        for batch in entry["batches"]:
            path = shipped_workload(kind, batch)
            save_workload(request_workload(predict_question(kind, batch)), path)
            written.add(path)
    for path in set(SHIPPED.glob("*.json.gz")) - written:
        path.unlink()


if __name__ == "__main__":
    main()
