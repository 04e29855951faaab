"""The plan as one bash script a rank, to be read, and to be run by hand where nothing else can be.

A script starts what a person would start: each process's ``argv`` with its environment, never a stand-in, also where
the plan is simulated. Containers, patches and preflight checks are no part of it; it names them in comments. Values
reach the process through ``env``, not through shell variables: bash has names of its own (``UID``, ``SECONDS``) that it
does not let be set. Needs bash 4.4, and setsid, env, timeout and sleep, as each Linux has them.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from disagg_run.errors import PlanError
from disagg_run.plain_text import printable
from disagg_run.planning.document import Group, LaunchPlan, PlannedProcess, RankPlan
from disagg_run.render.shell_text import CLEAN, FRAME, PROBES
from disagg_run.render.shell_waits import Whereabouts, start_order

_SHORT_FLAG = re.compile(r"-[A-Za-z]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def render_process_shell(process: PlannedProcess) -> str:
    """Bash that becomes the process: its secrets checked, its environment, then ``exec`` of its argv."""
    _check(process)
    lines = ["set -fu", *_secret_checks([process])]
    if _inherited_paths(process):
        lines.append(CLEAN)
    return "\n".join([*lines, *_become(process, "exec env")]) + "\n"


def render_shell(plan: LaunchPlan, rank: int) -> str:
    """The script of one rank.

    It starts the rank's processes in order, each in a session of its own; waits for what they wait for, on other ranks
    too where that can be asked over the network; ends with a code other than 0 when one of them exits, with the
    workload's own code when there is one; and ends, however it ends, exactly the process groups that it started.

    Raises PlanError where the plan has no such rank, or holds what no process can be given (a NUL character).
    """
    for chosen in plan.ranks:
        if chosen.rank == rank:
            return _script(plan, chosen, plan.digest, Whereabouts(plan))
    raise PlanError(f"the plan has no rank {rank}", remedy=f"its ranks are 0 to {len(plan.ranks) - 1}")


def write_scripts(plan: LaunchPlan, directory: Path) -> tuple[Path, ...]:
    """Write ``rank-0.sh``, ``rank-1.sh``, … (mode 0755) into ``directory``, which is made; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    digest, whereabouts = plan.digest, Whereabouts(plan)
    paths = []
    for rank in plan.ranks:
        path = directory / f"rank-{rank.rank}.sh"
        path.write_bytes(_script(plan, rank, digest, whereabouts).encode("utf-8", "surrogateescape"))
        path.chmod(0o755)
        paths.append(path)
    return tuple(paths)


def _script(plan: LaunchPlan, rank: RankPlan, digest: str, whereabouts: Whereabouts) -> str:
    processes = start_order(rank.processes())
    for process in processes:
        _check(process)
    lines = [*_header(plan, rank, digest), *FRAME.splitlines(), *PROBES.splitlines()]
    if any(_inherited_paths(process) for process in processes):
        lines += CLEAN.splitlines()
    lines += _secret_checks(processes)
    for index, process in enumerate(processes):
        lines += ["", f"process_{index}() {{ # {printable(process.name)}"]
        lines += [f"  {line}" for line in _become(process, "exec setsid env")]
        lines.append("}")
    for index, process in enumerate(processes):
        lines += ["", *whereabouts.waits(rank, process), f"start {shlex.quote(process.name)} process_{index}"]
        if process.kind == "setup":
            bounds = [math.ceil(ready.timeout_s) for ready in process.ready if ready.kind == "exit"]
            lines.append(f"until_done {max(bounds, default=0)}")
        elif process.kind == "workload":
            lines.append("until_done 0")
    kinds = {process.kind for process in processes}
    if kinds - {"setup"} and "workload" not in kinds:
        lines += ["", "while check; do pause; done"]
    return "\n".join(lines) + "\n"


# --- one process -------------------------------------------------------------------------------------------------


def _become(process: PlannedProcess, how: str) -> Iterator[str]:
    """Lines that replace the shell by the process; ``how`` is the command that takes variables and argv."""
    for index, name in enumerate(_inherited_paths(process)):
        yield f'clean "${{{name}-}}"; path_{index}=$REPLY'
    words = [how]
    words += [f"-u {name}" for name in _not_passed_on(process)]
    words.append("--")
    words += _assignments(process)
    argv = _phrases(process.argv)
    if "=" in process.argv[0]:
        # env would take such a program for one more variable.
        argv[0] = f"nice -n 0 -- {argv[0]}"
    yield " \\\n    ".join([*words, *argv])


def _phrases(argv: Iterable[str]) -> list[str]:
    """The quoted words, a flag and its values together, for a line each."""
    phrases: list[str] = []
    for word in argv:
        if not phrases or word.startswith("--") or _SHORT_FLAG.match(word):
            phrases.append(shlex.quote(word))
        else:
            phrases[-1] += f" {shlex.quote(word)}"
    return phrases


def _assignments(process: PlannedProcess) -> Iterator[str]:
    """Shell words that set the variables that are set or extended; none for a path without any element."""
    extended, inherited = _extended(process), _inherited_paths(process)
    for name, value in process.env.items():
        if name not in extended:
            yield f"{name}={shlex.quote(value)}"
    for name in extended:
        before, after = _elements(process.env_prepend.get(name, ())), _elements(process.env_append.get(name, ()))
        if name not in inherited:
            whole = [*before, *_elements([process.env.get(name, "")]), *after]
            if whole:
                yield f"{name}={shlex.quote(':'.join(whole))}"
            continue
        here, tail = f"path_{inherited.index(name)}", shlex.quote(":".join(after))
        if before:
            behind = f":{tail}" if after else ""
            yield f'{name}={shlex.quote(":".join(before))}"${{{here}:+:${here}}}"{behind}'
        elif after:
            yield f'{name}="${{{here}:+${here}:}}"{tail}'
        else:
            yield f'${{{here}:+"{name}=${here}"}}'


def _not_passed_on(process: PlannedProcess) -> dict[str, None]:
    """Variables that must not come from the node: unset ones, and paths that may be left without any element."""
    names = [name for name in process.unset if name not in process.env]
    for name in _extended(process):
        if not _elements((*process.env_prepend.get(name, ()), *process.env_append.get(name, ()))):
            names.append(name)
    return dict.fromkeys(names)


def _elements(words: Iterable[str]) -> list[str]:
    """The elements of path lists, without empty ones: each would mean the current directory."""
    return [element for element in ":".join(words).split(":") if element]


def _extended(process: PlannedProcess) -> list[str]:
    return list(dict.fromkeys((*process.env_prepend, *process.env_append)))


def _inherited_paths(process: PlannedProcess) -> list[str]:
    """Variables that are extended around what the node has."""
    return [name for name in _extended(process) if name not in process.env and name not in process.unset]


def _secret_checks(processes: Iterable[PlannedProcess]) -> Iterator[str]:
    needed: dict[str, str] = {}
    for process in processes:
        for name in process.secrets:
            needed.setdefault(name, process.name)
    for name, process_name in needed.items():
        yield f': "${{{name}:?{re.sub("[^A-Za-z0-9_.@-]", "_", process_name)} needs it from the environment}}"'


def _check(process: PlannedProcess) -> None:
    names = (*process.env, *process.env_prepend, *process.env_append, *process.unset, *process.secrets)
    for name in names:
        if not _NAME.match(name):
            raise PlanError(
                f"{name!r} of {process.name} is no variable name", remedy="use letters, digits, underscores"
            )
    if not process.argv:
        raise PlanError(f"{process.name} has no command", remedy="a process needs an argv")
    parts = (part for group in (process.env_prepend, process.env_append) for each in group.values() for part in each)
    for text in (*process.argv, *process.env.values(), *parts):
        if "\0" in text:
            raise PlanError(f"{process.name} is given a NUL character in {text!r}", remedy="no process can be given it")
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise PlanError(f"{process.name} is given {text!r}, which is no text", remedy="take it out") from None


# --- what is said -----------------------------------------------------------------------------------------------


def _header(plan: LaunchPlan, rank: RankPlan, digest: str) -> Iterator[str]:
    yield "#!/usr/bin/env bash"
    where = f"{rank.node.name} {rank.node.address}".strip()
    yield f"# Rank {rank.rank} on {printable(where)}, plan {digest}"
    yield f"# {printable(f'{plan.engine} {plan.engine_version}, {plan.model.name}')}"
    if plan.simulated:
        yield "# The plan is simulated; this script starts the real commands, not the stand-ins."
    if not plan.bound:
        yield "# The plan was made without node names: its addresses are examples."
    for group in rank.groups:
        for note in _group_notes(group):
            yield f"# {printable(note)}"
    yield "# shellcheck disable=SC2034,SC2317"


def _group_notes(group: Group) -> Iterator[str]:
    names = ", ".join(process.name for process in group.processes)
    if group.container is not None:
        yield f"Meant for a container of {group.container.image}: {names}"
    if group.patches:
        yield f"Not applied here, patches for {names}: {', '.join(patch.id for patch in group.patches)}"
    if group.preflight:
        yield f"Not checked here, preflight for {names}: {group.checks_text()}"
