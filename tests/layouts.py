"""Layouts of a toy engine for tests."""

from __future__ import annotations

from typing import Any

import attrs

from disagg_run.declarations import Engine
from disagg_run.spec.model import LaunchSpec, Node, RoleSpec
from disagg_run.topology import Layout, place

ENGINE = Engine(
    name="toy-disagg",
    summary="a toy",
    models=(),
    versions=">=1",
    default_version="1.0",
    default_connector="toy-link",
    multi_node_workers=True,
)

ONE_NODE_ENGINE = attrs.evolve(ENGINE, multi_node_workers=False)


def nodes(count: int) -> list[Node]:
    return [Node(name=f"n{index}", address=f"10.0.{index // 256}.{index % 256}") for index in range(count)]


def layout(
    prefill: tuple[int, int] = (1, 8),
    decode: tuple[int, int] = (1, 8),
    *,
    engine: Engine = ENGINE,
    pp: tuple[int, int] = (1, 1),
    prefill_nodes: int | None = None,
    decode_nodes: int | None = None,
    known_gpus: dict[int, int] | None = None,
    **spec: Any,
) -> Layout:
    """Place (workers, tp) of each role; ``pp``: of prefill and decode."""
    asked = LaunchSpec(
        engine=engine.name,
        model="toy",
        prefill=RoleSpec(workers=prefill[0], pp=pp[0], nodes=prefill_nodes),
        decode=RoleSpec(workers=decode[0], pp=pp[1], nodes=decode_nodes),
        **spec,
    )
    return place(asked, engine, {"prefill": prefill[1], "decode": decode[1]}, known_gpus=known_gpus)


def seats(found: Layout) -> dict[str, tuple[int, tuple[int, ...]]]:
    return {placed.process.name: (placed.rank, placed.process.gpus) for placed in found.processes}


EIGHT = tuple(range(8))
