"""Patches to choose from on the command line: those of the installed plugins, or those of a plan document."""

from __future__ import annotations

from pathlib import Path

from disagg_run.context import RankContext
from disagg_run.declarations import Engine, Extension, ModelRow
from disagg_run.host import Host, build_host
from disagg_run.input_files import read_bytes
from disagg_run.planning.document import LaunchPlan
from disagg_run.planning.reading import read_plan
from disagg_run.records import Patch
from disagg_run.spec.model import LaunchSpec, Node


def offers() -> list[tuple[str, Patch]]:
    """All patches of all healthy patch plugins, each with its plugin's name."""
    host = build_host()
    found = []
    for name, extension in host.extensions().items():
        if extension.kind == "patches":
            found += [(name, offer.record) for offer in host.offered_patches(name, _context(host, extension))]
    return found


def planned(path: Path) -> tuple[Patch, ...]:
    """The patches that a plan document carries, over all ranks."""
    plan = read_plan(LaunchPlan, read_bytes(path, "plan file"), what=f"the plan file {str(path)!r}")
    patches = [patch for rank in plan.ranks for group in rank.groups for patch in group.patches]
    return tuple({patch.id: patch for patch in patches}.values())


def _context(host: Host, extension: Extension) -> RankContext:
    """What a patch plugin is asked with outside a plan: its engine, an unknown node, all its patches."""
    name = extension.engines[0] if extension.engines != "all" else ""
    engine = host.engines().get(name) or Engine(
        name=name, summary="", models=(), versions="", default_version="0", default_connector=""
    )
    node = Node(address="192.0.2.1")
    return RankContext(
        spec=LaunchSpec(engine=name, model="", patches=(extension.name, *extension.patch_sets)),
        engine=engine,
        model=ModelRow(name=""),
        model_path="",
        engine_version=engine.default_version,
        connector=engine.default_connector,
        rank=0,
        node=node,
        facts=None,
        heads=(),
        first_node=node,
    )
