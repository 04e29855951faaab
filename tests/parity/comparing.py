"""What differs between a case and our plan: commands as flags, environment as what reaches the process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from disagg_run import LaunchPlan, PlannedProcess
from tests.parity.case import Case, host
from tests.parity.commands import read_command, read_names

#: The launchers' own paths and shell variables: no engine reads them, and they are no part of the contract.
_OWN_PATHS = re.compile(r"(\A|[=:])/(workspace|run_logs)(/|\Z)")
_INTERMEDIATES = re.compile(
    r"(MORI_MAX_DISPATCH_TOKENS|MORI_COMBINE_DTYPE|MORI_MOE_MAX_INPUT_TOKENS|MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK)_\w+|IS_MTP"
)
_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD")


@attrs.frozen(kw_only=True)
class Difference:
    """One thing that differs in one process."""

    case: str
    #: Name in our plan: ``prefill-0``, ``router``; of the case's own where we have no such process.
    process: str
    #: ``flag --block-size``, ``flag --kv-transfer-config kv_role``, ``env FOO``, ``program``, ``process``.
    item: str
    #: ``absent``: only the case has it; ``added``: only our plan has it; ``differs``: both, with other values.
    kind: Literal["absent", "added", "differs"]
    theirs: Any = None
    ours: Any = None

    def __str__(self) -> str:
        return f"{self.case} {self.process}: {self.item} {self.kind}: reference {self.theirs!r}, plan {self.ours!r}"


def compare(case: Case, plan: LaunchPlan) -> tuple[Difference, ...]:
    """All differences between ``case`` and ``plan``."""
    return tuple(_Comparison(case, plan).all())


@attrs.frozen
class _Comparison:
    case: Case
    plan: LaunchPlan

    def all(self) -> Iterator[Difference]:
        ranks = self.case.data["ranks"]
        if len(ranks) != len(self.plan.ranks):
            yield self._difference("ranks", "ranks", "differs", len(ranks), len(self.plan.ranks))
        for theirs, ours in zip(ranks, self.plan.ranks, strict=False):
            processes = list(ours.processes())
            for command, process in self._pairs(theirs, processes):
                yield from self._process(command, process, theirs["rank"])

    def _pairs(
        self, rank: Mapping[str, Any], processes: list[PlannedProcess]
    ) -> Iterator[tuple[Mapping[str, Any] | None, PlannedProcess | str]]:
        """The case's commands with our processes; None or a bare name where one side has no partner."""
        role = rank["role"].partition("+")[0]
        wanted = [(rank["server"], role, [each for each in processes if each.kind == "server" and each.role == role])]
        if "router" in rank:
            wanted.append((rank["router"], "router", [each for each in processes if each.kind == "router"]))
        for aux in rank.get("aux", ()):
            wanted.append((aux, aux["name"], [each for each in processes if each.argv[0] == aux["argv"][0]]))
        for command, name, fitting in wanted:
            partner = next(iter(fitting), None)
            if partner is not None:
                processes.remove(partner)
            yield command, partner or name
        for process in processes:
            yield None, process

    def _process(
        self, command: Mapping[str, Any] | None, process: PlannedProcess | str, rank: int
    ) -> Iterator[Difference]:
        if isinstance(process, str):
            assert command is not None
            yield self._difference(process, "process", "absent", command["argv"], None)
        elif command is None:
            yield self._difference(process.name, "process", "added", None, list(process.argv))
        else:
            names = read_names(_catalogue(self.case, process))
            yield from self._command(process, read_command(command["argv"], names), read_command(process.argv, names))
            yield from self._environment(process, command, rank)

    def _command(
        self, process: PlannedProcess, theirs: Mapping[str, Any], ours: Mapping[str, Any]
    ) -> Iterator[Difference]:
        for item in sorted({*theirs, *ours}):
            mine, other = ours.get(item), theirs.get(item)
            if mine == other or (isinstance(other, str) and _OWN_PATHS.search(other)):
                continue
            kind: Literal["absent", "added", "differs"] = (
                "absent" if item not in ours else "added" if item not in theirs else "differs"
            )
            yield self._difference(process.name, item if item == "program" else f"flag {item}", kind, other, mine)

    def _environment(self, process: PlannedProcess, command: Mapping[str, Any], rank: int) -> Iterator[Difference]:
        base = {**self.case.environ, "NODE_RANK": str(rank)}
        stated = {**command.get("launch_env", {}), **command.get("env", {})}
        gone = set(command.get("launch_unset", ()))
        theirs = {**{name: value for name, value in base.items() if name not in gone}, **stated}
        said = {*process.env, *process.env_prepend, *process.env_append, *process.unset}
        ours = {**{name: value for name, value in base.items() if name not in process.unset}, **process.env}
        for name in {*process.env_prepend, *process.env_append}:
            parts = (*process.env_prepend.get(name, ()), ours.get(name, ""), *process.env_append.get(name, ()))
            ours[name] = ":".join(part for part in parts if part)
        for name in sorted({*stated, *gone, *said}):
            other: Any = theirs.get(name)
            mine: Any = ours.get(name)
            if name in _PATHS:
                other, mine = _elements(other, base.get(name)), _elements(mine, base.get(name))
            if other == mine or _INTERMEDIATES.fullmatch(name) or _OWN_PATHS.search(str(other or "")):
                continue
            kind: Literal["absent", "added", "differs"] = (
                "absent" if name not in said else "added" if name not in stated and name not in gone else "differs"
            )
            yield self._difference(process.name, f"env {name}", kind, other, mine)

    def _difference(
        self, process: str, item: str, kind: Literal["absent", "added", "differs"], theirs: Any, ours: Any
    ) -> Difference:
        return Difference(case=self.case.name, process=process, item=item, kind=kind, theirs=theirs, ours=ours)


def _elements(value: str | None, inherited: str | None) -> tuple[str, ...]:
    """A path variable's elements without the empty ones and the inherited ones."""
    known = set((inherited or "").split(":"))
    return tuple(part for part in (value or "").split(":") if part and part not in known)


def _catalogue(case: Case, process: PlannedProcess) -> Path | None:
    engine = host().engine(case.engine.plugin)
    program = "router" if process.kind == "router" else "server"
    if process.kind not in ("router", "server"):
        return None
    refs = [ref for ref in engine.catalogues if ref.program == program]
    exact = [ref for ref in refs if ref.version == case.engine.version]
    return (exact or refs)[-1].file
