"""What the user gives a server by hand, for what of it no flag or variable of the plan can be held against."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext
from disagg_run.sources import Source
from disagg_run.spec.model import ArgText, ProcessSpec


def texts(ctx: ProcessContext) -> tuple[ArgText, ...]:
    """The user's words for the server: for all servers, for its role, for it by name, the narrower last."""
    own = ctx.spec.processes.get(ctx.process.name, ProcessSpec()).args
    return (*ctx.spec.args, *ctx.role_spec.args, *own)


def mentions(ctx: ProcessContext, *parts: str) -> bool:
    """Whether one of the user's words for the server has one of ``parts`` in it, however it is spelled."""
    words = [word.replace("_", "-") for text in texts(ctx) for word in text.words]
    return any(part in word for word in words for part in parts)


def variable(ctx: ProcessContext, name: str) -> tuple[str, Source] | None:
    """The user's value of a server's variable and who set it, the narrowest; None = it is left to the plan."""
    return next(_values(ctx, name), None)


def _values(ctx: ProcessContext, name: str) -> Iterator[tuple[str, Source]]:
    spec, process = ctx.spec, ctx.process
    own = spec.processes.get(process.name, ProcessSpec()).env
    targets = ((f"processes.{process.name}.env", own), (f"{process.role}.env", ctx.role_spec.env), ("env", spec.env))
    for path, values in targets:
        if name in values:
            yield values[name], spec.source(f"{path}.{name}")
