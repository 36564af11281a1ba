"""Parameters of virtual nodes."""

from wattloop.core.errors import ConfigError
from wattloop.virtual.cards import CARDS
from wattloop.virtual.job import TrainingJob
from wattloop.virtual.node import NodeModel
from wattloop.virtual.physics import Activity

__all__ = ["NODES", "node_named"]

XCEPTION = TrainingJob(
    name="xception",
    gpu_s=395.1,
    activity=Activity(1.0, 0.5, 1.0, overlap=0.0),
    comm_s=16.87,
    comm_growth=0.489,
    comm_activity=Activity(0.232, 1.0, 1.0),
    source=(
        "five epochs of Xception on 10,000 images with Horovod, Koszczal et al. (Euro-Par 2023 "
        "Workshops, doi 10.1007/978-3-031-48803-0_1); fitted by benchmarks/document_004.py"
    ),
)

NODES: dict[str, NodeModel] = {
    "node004": NodeModel(
        name="node004",
        card=CARDS["rtx6000"],
        gpus=8,
        host_w=474.6,
        fan_w=500.0,
        supply_w=4_000.0,
        job=XCEPTION,
        source=(
            "8 Quadro RTX 6000, 2 Xeon Silver 4210, four 1 kW Gold supplies of Koszczal et al. "
            "(Euro-Par 2023 Workshops, doi 10.1007/978-3-031-48803-0_1); host and fans fitted by "
            "benchmarks/document_004.py to the training times and largest energy gains they give"
        ),
    ),
}


def node_named(name: str) -> NodeModel:
    """The node called `name`, such as `node004`.

    Raises:
        ConfigError: there is none.
    """
    node = NODES.get(name.lower())
    if node is None:
        raise ConfigError(f"no virtual node called '{name}'; known are {', '.join(NODES)}")
    return node
