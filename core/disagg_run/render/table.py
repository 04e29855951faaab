"""The plan as plain aligned text for people: what each rank runs, the ports, the waits, the warnings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from disagg_run.plain_text import columns, listed, printable
from disagg_run.planning.document import Group, LaunchPlan, PlannedProcess, RankPlan, Remark

#: Columns after which a command is cut short; ``--format json`` or ``shell`` has the whole of it.
WIDTH = 120


def render_table(plan: LaunchPlan) -> str:
    """The plan as text: one block a rank, then ports, warnings and waived checks."""
    lines = [*_head(plan)]
    for rank in plan.ranks:
        lines += ["", *_rank(rank)]
    lines += ["", "ports", *columns(_port_rows(plan), indent="  ").splitlines()]
    for title, remarks in (("warnings", plan.warnings), ("waived", plan.waived)):
        if remarks:
            lines += ["", title, *(_remark(remark) for remark in remarks)]
    return "\n".join(lines) + "\n"


def _head(plan: LaunchPlan) -> Iterator[str]:
    if plan.simulated:
        state = "simulated: the engines' stand-ins are started"
    elif plan.bound:
        state = "bound to its nodes"
    else:
        state = "unbound: made without node names, cannot be run"
    count = len(plan.ranks)
    rows = [
        ("engine", printable(f"{plan.engine} {plan.engine_version}, connector {plan.connector}")),
        ("model", printable(f"{plan.model.name} at {plan.model.path}, served as {plan.model.served_name}")),
        ("plan", f"{count} rank{'' if count == 1 else 's'}, {state}"),
        ("digest", plan.digest),
    ]
    yield from columns(rows).splitlines()


def _rank(rank: RankPlan) -> Iterator[str]:
    yield printable(f"rank {rank.rank}  {rank.node.name}  {rank.node.address}".replace("    ", "  "))
    for group in rank.groups:
        indent = "  "
        if group.container is not None:
            yield printable(f"  container {group.container.image}")
            indent = "    "
        for process in group.processes:
            for line in _process(process):
                yield indent + line
        for line in _group_notes(group):
            yield indent + line


def _process(process: PlannedProcess) -> Iterator[str]:
    what = process.kind if process.head else f"{process.kind} (follower)"
    gpus = f"  gpus {_numbers(process.gpus)}" if process.gpus else ""
    yield printable(f"{process.name}  {what}{gpus}")
    rows = []
    if process.ports:
        rows.append(("ports", ", ".join(f"{name} {process.port_text(name)}" for name in process.ports)))
    rows += [("ready", printable(str(ready))) for ready in process.ready]
    if process.after:
        rows.append(("after", _waits(process)))
    rows.append(("command", _shortened(process.argv)))
    if process.exec:
        rows.append(("stand-in", _shortened(process.exec)))
    changes = _environment(process)
    if changes:
        rows.append(("variables", changes))
    yield from columns(rows, indent="  ").splitlines()


def _waits(process: PlannedProcess) -> str:
    """What a process waits for, by the stage it must reach: ``ready: store, prefill-0; started: decode-0``."""
    stages: dict[str, list[str]] = {}
    for edge in process.after:
        stages.setdefault(edge.until, []).append(edge.process)
    return printable("; ".join(f"{listed(names, 8)} {until}" for until, names in stages.items()))


def _environment(process: PlannedProcess) -> str:
    counts = [
        (len(process.env), "set"),
        (len(process.env_prepend) + len(process.env_append), "extended"),
        (len(process.unset), "unset"),
    ]
    parts = [f"{number} {what}" for number, what in counts if number]
    if process.secrets:
        parts.append(f"secret: {', '.join(process.secrets)}")
    return printable(", ".join(parts))


def _group_notes(group: Group) -> Iterator[str]:
    if group.patches:
        from disagg_run.patching import planned_as

        for patch in group.patches:
            yield printable(f"patch      {planned_as(patch)}")
    if group.preflight:
        yield printable(f"preflight  {group.checks_text()}")


def _port_rows(plan: LaunchPlan) -> Iterator[tuple[str, ...]]:
    yield ("rank", "process", "listener", "ports")
    for rank in plan.ranks:
        for process in rank.processes():
            for name in process.ports:
                yield (str(rank.rank), printable(process.name), printable(name), process.port_text(name))


def _remark(remark: Remark) -> str:
    return printable(f"  - {remark.message}" + (f" ({remark.source})" if remark.source else ""))


def _numbers(numbers: Sequence[int]) -> str:
    """``0-7``, or all of them where they are not in a row."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


def _shortened(argv: Sequence[str]) -> str:
    text = printable(shlex.join(argv))
    return text if len(text) <= WIDTH else text[: WIDTH - 2] + " …"
