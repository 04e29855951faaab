"""What an agent does to its node before the first process: checks, then source patches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disagg_run.planning.document import Group, to_data
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
        python = engine_python(group)
        if python is not None or group.patches or group.forbid_patches:
            from disagg_run.running.carried_patches import check_carried

            check_carried(group, python, warn=lambda text: warn("preflight.warning", what=text))
        if group.patches:
            _patch(group, python, note)


def _patch(group: Group, python: str | None, note: Note) -> None:
    """Apply the group's patches; what became of each is an event, also where one of them stops the run."""
    from disagg_run.patching import PatchesRefused, apply_patches

    refusal = None
    try:
        states = apply_patches(group.patches, python=python)
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
    for process in group.processes:
        if process.kind != "server":
            continue
        path = {**os.environ, **process.env}.get("PATH")
        program = shutil.which(process.argv[0], path=path)
        if program is None:
            return None
        return program if Path(program).name.startswith("python") else _of_script(program, path)
    return None


def _of_script(program: str, path: str | None) -> str | None:
    with open(program, "rb") as file:
        first = file.readline(4096)
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = words[1:]
    if not words or not Path(words[0]).name.startswith("python"):
        return None
    return shutil.which(words[0], path=path)
