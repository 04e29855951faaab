"""An engine that keeps the contract, for tests that break one thing at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disagg_run import Command, Engine, Flag, Listener, ModelRow, Probe, ProcessContext, Simulation, flag, hookimpl

RECORD = Engine(
    name="good-disagg",
    summary="keeps the contract",
    models=[ModelRow(name="good-model"), ModelRow(name="other-model")],
    versions=">=1",
    default_version="1.0",
    default_connector="good-link",
    multi_node_workers=True,
)


class Good:
    """An engine that keeps the contract; tests break one thing at a time."""

    record = RECORD

    @hookimpl
    def disagg_plugin(self) -> Engine:
        return self.record

    @hookimpl
    def disagg_readiness(self, ctx: ProcessContext) -> Iterable[Listener]:
        return [Listener(name="http", default_port=8000, probe=Probe(kind="http"))]

    @hookimpl
    def disagg_server_command(self, ctx: ProcessContext) -> Iterable[Command]:
        return [Command(program=["good-server"], flags=tuple(self.flags(ctx)))]

    def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
        yield flag("--port", ctx.ports["http"])
        yield flag("--node-rank", ctx.process.node_rank)

    @hookimpl
    def disagg_router_command(self, ctx: ProcessContext) -> Iterable[Command]:
        return [Command(program=["good-router"], flags=[flag("--port", ctx.ports["http"])])]

    @hookimpl
    def disagg_simulation(self, ctx: ProcessContext) -> Iterable[Simulation]:
        return [Simulation(program=["@python", "-m", "good"])]
