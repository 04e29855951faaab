"""What an agent does to its node before the first process: checks, then source patches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from disagg_run.planning.document import Group, PlannedProcess, to_data
from disagg_run.running.environment import process_environment
from disagg_run.running.preflight import beside, check_node
from disagg_run.running.share import Share

Note = Callable[..., Any]


async def prepare(share: Share, note: Note, warn: Note) -> None:
    """Check the node and patch what the plan says, in a thread of its own; raises what the checks and patches raise."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(None)

    def work() -> None:
        error: BaseException | None = None
        try:
            _prepare(share, note, warn)
        except BaseException as caught:  # noqa: BLE001 - carried over to the agent's own thread
            error = caught
        with contextlib.suppress(RuntimeError):  # the run has ended meanwhile, and its loop with it
            loop.call_soon_threadsafe(tell, error)

    # A daemon thread: where the run ends meanwhile, nobody waits for a check or a lock.
    threading.Thread(target=work, name="prepare", daemon=True).start()
    await done


def _prepare(share: Share, note: Note, warn: Note) -> None:
    clash = {"clash": beside(share.rank.node.address, share.ranks, share.engine)} if share.simulated else {}
    check_node(share.rank, simulated=share.simulated, warn=lambda text: warn("preflight.warning", what=text), **clash)
    if share.simulated:
        return  # stand-ins are not the engine that the patches are for
    for group in share.rank.groups:
        server = _server(group)
        python = engine_python(group)
        env = process_environment(server, os.environ) if server else None
        if python is None and server is not None and group.patches:
            warn(
                "preflight.warning",
                what=f"it cannot be told which Python {server.argv[0]!r} runs: source patches go to what the first"
                " python3 of PATH imports",
            )
        if python is not None or group.patches or group.forbid_patches:
            from disagg_run.running.carried_patches import check_carried

            check_carried(group, python, env=env, warn=lambda text: warn("preflight.warning", what=text))
        if group.patches:
            _patch(group, python, env, note)


def _patch(group: Group, python: str | None, env: Mapping[str, str] | None, note: Note) -> None:
    """Apply the group's patches; what became of each is an event, also where one of them stops the run."""
    from disagg_run.patching import PatchesRefused, apply_patches

    refusal = None
    try:
        states = apply_patches(group.patches, python=python, env=env)
    except PatchesRefused as error:
        states, refusal = error.states, error
    for state in states:
        data = to_data(state)
        note("patch.state", patch=data.pop("id"), **data)
    if refusal is not None:
        raise refusal


def engine_python(group: Group) -> str | None:
    """The interpreter that runs the group's servers: their first word, or that of the script it names.

    None where it cannot be told; patches then go to what the first ``python3`` of PATH imports.
    """
    process = _server(group)
    if process is None:
        return None
    path = process_environment(process, os.environ).get("PATH")
    program = shutil.which(process.argv[0], path=path)
    if program is None:
        return None
    return program if _is_python(program) else _of_script(program, path)


def _server(group: Group) -> PlannedProcess | None:
    return next((process for process in group.processes if process.kind == "server"), None)


def _is_python(word: str) -> bool:
    return Path(word).name.startswith("python")


def _of_script(program: str, path: str | None) -> str | None:
    """The interpreter of a script: of its first line, or where that would be too long, of the line by which it goes on.

    pip writes the second form for long paths and for those with blanks: ``#!/bin/sh``, then ``'''exec' "PYTHON" …``.
    """
    with open(program, "rb") as file:
        first, second = (file.readline(4096).decode("utf-8", "replace") for _ in range(2))
    words = _words(first[2:]) if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    elif words and second.startswith("'''exec' "):
        words = _words(second.removeprefix("'''exec' "))
    if not words or not _is_python(words[0]):
        return None
    return shutil.which(words[0], path=path)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is not closed
        return []
