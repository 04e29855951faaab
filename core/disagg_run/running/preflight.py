"""Checks on the node before anything starts: kinds of ``records.Preflight``, free ports, secrets."""

from __future__ import annotations

import importlib.machinery
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from disagg_run.errors import PreflightError
from disagg_run.planning.document import PlannedProcess, RankPlan
from disagg_run.records import Preflight
from disagg_run.running import sockets
from disagg_run.running.environment import process_environment
from disagg_run.running.supervisor import process_env
from disagg_run.running.teardown import planned_ports
from disagg_run.simulation.offline import OFFLINE

#: For the command of ``output_matches``, in seconds.
_COMMAND_S = 30.0

#: What to do about a port that somebody else holds.
_CLASH = "end that process, or plan another port"


def check_node(rank: RankPlan, *, simulated: bool, warn: Callable[[str], None], clash: str = _CLASH) -> None:
    """Make the checks of a rank; a simulation needs free ports and its modules, and nothing else of the node.

    ``clash``: the remedy for a port that is held. Raises PreflightError with the first required check that fails; the
    others are warnings.
    """
    check_modules(rank.processes())
    for process in rank.processes():
        process_env(process, {})
        check_ports(process, rank.node.address, clash)
    for group in rank.groups:
        for check in group.preflight:
            if simulated and check.kind != "port_free":
                continue
            problem = _CHECKS[check.kind](check)
            if not problem:
                continue
            if check.required:
                raise PreflightError(f"check {check.name!r} of rank {rank.rank}: {problem}", remedy=check.remedy)
            warn(f"check {check.name!r}: {problem}")


def beside(address: str, ranks: int, engine: str) -> str:
    """How a simulation of ``ranks`` nodes runs beside another that holds its ports.

    ``address``: of one of its nodes; ``engine``: whose settings name the ports. Stand-ins listen on their node's
    address alone, but a router is the real one, and may listen on all.
    """
    own = sockets.numeric(address)
    block = 1 + int(own.split(".")[1]) % 200 if own.startswith("127.") else 1
    nodes = [f"127.{block}.0.{number}" for number in range(1, min(ranks, 4) + 1)] + ["…"] * (ranks > 4)
    return (
        f"end that process, or run beside it: --nodes {','.join(nodes)}; where it is a router that listens on all"
        f" addresses, other ports too: --router-port, and the settings that disagg-run engines {engine} lists"
    )


def check_modules(processes: Iterable[PlannedProcess]) -> None:
    """Refuse to start where a module is missing from which a process is simulated: it would be noticed only late.

    A router is started once its servers are ready. Raises PreflightError naming the module.
    """
    for process in processes:
        module = _module(process.exec)
        if not module:
            continue
        top = module.partition(".")[0]
        path = [*process_environment(process, os.environ).get("PYTHONPATH", "").split(os.pathsep), *sys.path]
        if importlib.machinery.PathFinder.find_spec(top, path) is None:
            raise PreflightError(
                f"{process.name} is simulated by the module {module!r}, and there is no {top!r} here",
                remedy="install it beside disagg-run: pip install 'disagg-run[routers]' brings what simulations of the"
                " engines that come with it need",
            )


def _module(words: tuple[str, ...]) -> str:
    """The module that the words of a simulated process start; "" where it is none of this interpreter."""
    if words[: len(OFFLINE)] == OFFLINE:
        return words[len(OFFLINE)]
    return words[2] if words[:2] == OFFLINE[:2] else ""


def check_ports(process: PlannedProcess, address: str, clash: str = _CLASH) -> None:
    """Refuse to start where another process listens on a port of ``process``.

    ``clash``: the remedy. Raises PreflightError naming port, pid, user and command.
    """
    held = held_port(process, address)
    if held:
        raise PreflightError(held, remedy=clash)


def held_port(
    process: PlannedProcess, address: str, family: Iterable[int] = (), *, on_any_address: bool = False
) -> str:
    """Which port of ``process`` somebody else listens on, and who; "" where none.

    ``family``: pids that may. ``on_any_address``: a listener on another address of this machine counts too.
    """
    own = sockets.numeric(address)
    # Ranks that share a machine have loopback addresses of their own; elsewhere servers bind all addresses.
    narrow = sockets.is_loopback(address) and not on_any_address
    found = [each for each in sockets.listening(planned_ports(process)) if not narrow or each.takes(own)]
    for other in sockets.foreign(found, family):
        name = next(
            name
            for name, first in process.ports.items()
            if first <= other.port < first + process.port_counts.get(name, 1)
        )
        return f"port {other.port} ({name} of {process.name}) is held on {other.address} by {sockets.holder(other)}"
    return ""


def _path_exists(check: Preflight) -> str:
    return "" if Path(check.target).exists() else f"there is no {check.target!r} on this node"


def _device_present(check: Preflight) -> str:
    return "" if Path(check.target).exists() else f"the device {check.target!r} is not on this node"


def _port_free(check: Preflight) -> str:
    found = sockets.listening([int(check.target)])
    return f"port {check.target} is held by {sockets.holder(found[0])}" if found else ""


def _memory_free(check: Preflight) -> str:
    import psutil

    free = psutil.virtual_memory().available
    return (
        "" if free >= int(check.target) else f"{free:,} bytes of memory are available, {int(check.target):,} are needed"
    )


def _output_matches(check: Preflight) -> str:
    command = " ".join(check.argv)
    try:
        done = subprocess.run(
            check.argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command!r} cannot be run: {error}"
    output = done.stdout + done.stderr
    if re.search(check.pattern, output, re.MULTILINE):
        return ""
    return (
        f"the output of {command!r} (exit code {done.returncode}) does not match {check.pattern!r}: {output[-200:]!r}"
    )


def _variable_set(check: Preflight) -> str:
    return "" if os.environ.get(check.target) else f"the variable {check.target!r} is not set"


_CHECKS: dict[str, Callable[[Preflight], str]] = {
    "path_exists": _path_exists,
    "device_present": _device_present,
    "port_free": _port_free,
    "memory_free": _memory_free,
    "output_matches": _output_matches,
    "variable_set": _variable_set,
}
