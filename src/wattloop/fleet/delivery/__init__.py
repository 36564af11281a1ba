"""Delivery of journals to the fleet server: stored on disk, sent once, in order.

The files are the only memory: a sender that is killed asks the server how far it is and goes on
there. A journal is deleted when the server says that its run is in the store, and not before.
"""

from wattloop.fleet.delivery.client import DeliveryOptions
from wattloop.fleet.delivery.node_status import NodeStatus, status_from_file, write_status
from wattloop.fleet.delivery.sender import Delivery, DeliveryProgress, deliver

__all__ = [
    "Delivery",
    "DeliveryOptions",
    "DeliveryProgress",
    "NodeStatus",
    "deliver",
    "status_from_file",
    "write_status",
]
