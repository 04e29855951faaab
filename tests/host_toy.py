"""Plugins for tests of the host, and contexts to call them with."""

from __future__ import annotations

from typing import Any

import attrs

from disagg_run.context import Process, ProcessContext, RankContext
from disagg_run.declarations import Engine, Extension, ModelRow
from disagg_run.hookspecs import hookimpl
from disagg_run.host import Host, Selection, build_host
from disagg_run.spec.model import LaunchSpec, Node


def engine(name: str = "toy-disagg", **fields: Any) -> Engine:
    given = {"models": [ModelRow(name="toy-model")], "versions": "", "default_version": "1.0", **fields}
    return Engine(name=name, summary="a toy", default_connector="toy", **given)


def plugin(record: Engine | Extension, **hooks: Any) -> object:
    """A plugin that answers each hook with a value, or with what a function of the context gives."""

    def implementation(answer: Any) -> Any:
        def implemented(self: object, ctx: RankContext) -> Any:
            return answer(ctx) if callable(answer) else answer

        return implemented

    def disagg_plugin(self: object) -> Engine | Extension:
        return record

    body = {"disagg_plugin": hookimpl(disagg_plugin), "__doc__": "A plugin of a test."}
    for name, answer in hooks.items():
        body[f"disagg_{name}"] = hookimpl(implementation(answer))
    return type(record.name, (), body)()


def connector(name: str = "toy", **hooks: Any) -> object:
    return plugin(Extension(name=name, summary="", kind="connector"), **hooks)


def site(name: str = "my-site", **hooks: Any) -> object:
    return plugin(Extension(name=name, summary="", kind="site"), **hooks)


def host_of(*plugins: object) -> Host:
    host = build_host(plugins=plugins, entry_points=False)
    assert host.problems() == ()
    return host


def select(*others: object, **engine_hooks: Any) -> Selection:
    """A selection of a toy engine with these hooks, a silent connector unless one is given, and others."""
    plugins = [plugin(engine(), **engine_hooks), *others]
    if not any(isinstance(each, Extension) and each.kind == "connector" for each in map(_record, others)):
        plugins.append(connector())
    return host_of(*plugins).select("toy-disagg", None)


def _record(given: Any) -> object:
    return given.disagg_plugin()


def rank_context(rank: int = 3) -> RankContext:
    node = Node(address="192.0.2.1")
    return RankContext(
        spec=LaunchSpec(engine="toy-disagg", model="toy-model"),
        engine=engine(),
        model=ModelRow(name="toy-model"),
        model_path="/models/toy-model",
        engine_version="1.0",
        connector="toy",
        rank=rank,
        node=node,
        facts=None,
        heads=(),
        first_node=node,
    )


def context(name: str = "decode-0") -> ProcessContext:
    fields = {field.name: getattr(rank_context(), field.name) for field in attrs.fields(RankContext)}
    return ProcessContext(**fields, process=Process(name=name, kind="server", role="decode"))
