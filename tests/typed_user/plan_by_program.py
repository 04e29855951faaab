"""What a program outside does with disagg-run, by public names alone: plan, change, write, read.

A test runs it, and mypy checks it in strict mode with what the package declares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import attrs

import disagg_run
from disagg_run import (
    DisaggError,
    EnvSetting,
    Extension,
    Host,
    LaunchPlan,
    LaunchSpec,
    Node,
    NodeFacts,
    PlannedProcess,
    ProcessContext,
    RoleSpec,
    SpecError,
    build_host,
    hookimpl,
    plan,
)


class OurSite:
    """A plugin that the program itself brings."""

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(name="our-site", summary="our cluster", kind="site")

    @hookimpl
    def disagg_env(self, ctx: ProcessContext) -> Iterable[EnvSetting]:
        return [EnvSetting("OUR_CLUSTER", ctx.node.name)]


def first_engine(host: Host) -> tuple[str, str]:
    """An engine that is installed, and a model of its table."""
    for name in host.engines():
        for row in host.models(name):
            return name, row.name
    raise SystemExit("no engine is installed")


def make(host: Host, engine: str, model: str, workers: int) -> LaunchPlan:
    """A plan over named nodes, with what is known of the first of them."""
    nodes = [Node(name=f"node{index}", address=f"10.0.0.{index + 1}") for index in range(workers + 1)]
    spec = LaunchSpec(engine=engine, model=model, prefill=RoleSpec(workers=workers), nodes=nodes)
    facts = {0: NodeFacts(hostname="node0", gpus=8)}
    return plan(spec, facts, host=host)


def commands(made: LaunchPlan) -> dict[str, tuple[str, ...]]:
    """The command of each server."""
    servers: list[PlannedProcess] = [
        process for rank in made.ranks for process in rank.processes() if process.kind == "server"
    ]
    return {process.name: process.argv for process in servers}


def renamed(made: LaunchPlan, rank: int, address: str) -> LaunchPlan:
    """The plan with another node for a rank."""
    ranks = list(made.ranks)
    ranks[rank] = attrs.evolve(ranks[rank], node=attrs.evolve(ranks[rank].node, address=address))
    return attrs.evolve(made, ranks=tuple(ranks))


def main() -> int:
    host = build_host(plugins=[OurSite()])
    engine, model = first_engine(host)
    made = make(host, engine, model, workers=2)
    assert list(commands(made)) == ["prefill-0", "prefill-1", "decode-0"]
    assert made.process("decode-0").env["OUR_CLUSTER"] == "node2"
    assert made.sources is not None

    read = LaunchPlan.from_json(made.to_json())
    assert read == made
    assert read.digest == made.digest

    changed = renamed(read, 2, "10.0.0.9")
    assert changed.digest != made.digest
    assert LaunchPlan.from_json(changed.to_json(indent=1)).ranks[2].node.address == "10.0.0.9"

    try:
        make(host, engine + "x", model, workers=1)
    except SpecError as error:
        refused: DisaggError = error
        print(refused.message, refused.remedy, refused.exit_code, file=sys.stderr)
    print(f"{disagg_run.__version__} {made.engine} {made.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
