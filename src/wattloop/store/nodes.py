"""Last known state of each node, so that a restarted server knows which nodes are missing."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, select

from wattloop.core.text import plain_data, plain_json
from wattloop.store.database import Store
from wattloop.store.schema import nodes


def keep_nodes(store: Store, heard: Mapping[str, tuple[float, dict[str, Any]]]) -> None:
    """Store nodes: name -> (time of the last report, state)."""
    if not heard:
        return
    rows = [
        {"node": node, "heard_wall_s": heard_s, "body": plain_json(body)}
        for node, (heard_s, body) in sorted(heard.items())
    ]
    with store.writing() as connection:
        connection.execute(delete(nodes).where(nodes.c.node.in_(list(heard))))
        connection.execute(insert(nodes), rows)


def known_nodes(store: Store) -> dict[str, tuple[float, dict[str, Any]]]:
    """Return the nodes that `keep_nodes` stored."""
    with store.reading() as connection:
        found = connection.execute(select(nodes.c.node, nodes.c.heard_wall_s, nodes.c.body))
        return {node: (heard_s, plain_data(body)) for node, heard_s, body in found}


def forget_node(store: Store, node: str) -> bool:
    """Delete a node; False when it was not known."""
    with store.writing() as connection:
        return connection.execute(delete(nodes).where(nodes.c.node == node)).rowcount > 0
