"""Readiness and order: probes with their targets, and what each process waits for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from disagg_run.catalogue import Catalogue
from disagg_run.context import host_port
from disagg_run.errors import PlanError, PluginError, PortError
from disagg_run.flag_meaning import says
from disagg_run.flags import MergedFlag
from disagg_run.planning.document import After, PlannedProcess, Ready
from disagg_run.planning.environment import MergedEnv
from disagg_run.planning.secret_values import A_SECRET, hidden
from disagg_run.planning.values import flag_value
from disagg_run.records import Listener
from disagg_run.sources import Source
from disagg_run.spec.options import by_dotted

_HEAD = re.compile(r"\{http:([a-z0-9-]+)\}")

#: Setup commands are short; one that hangs must not hold nodes (seconds).
SETUP_TIMEOUT_S = 300.0


def readiness(
    listeners: Iterable[Listener], ports: Mapping[str, int], address: str, heads: Mapping[str, str]
) -> tuple[Ready, ...]:
    """The proofs that a process's listeners ask for, with targets on ``address``; ``heads`` serve HTTP at host:port.

    Raises PluginError for a text that names no head.
    """
    proofs = []
    for listener in listeners:
        for probe in (listener.probe, *listener.further_probes):
            if probe is None or listener.name not in ports:  # a listener of no ports proves nothing
                continue
            place = host_port(address, ports[listener.name])
            identity = {"listener": listener.name}
            if probe.served_model is not None:
                identity["served_model"] = probe.served_model
                identity["url"] = f"http://{place}{probe.identity_path}"
            target = place if probe.kind == "tcp" else f"http://{place}{probe.path}"
            if probe.kind == "output":
                target = _HEAD.sub(lambda match: _place_of(match[1], heads), probe.text)
            proofs.append(
                Ready(
                    kind=probe.kind,
                    target=target,
                    timeout_s=float(probe.timeout_s),
                    identity=identity,
                    broken_status=probe.broken_status,
                )
            )
    return tuple(proofs)


def _place_of(name: str, heads: Mapping[str, str]) -> str:
    if name not in heads:
        raise PluginError(
            f"a probe's text names {name!r}, which is no head of the plan", remedy=f"heads are {', '.join(heads)}"
        )
    return heads[name]


def check_http(listeners: Iterable[Listener], process: str) -> None:
    """Refuse a head or a router without a listener called ``http``, with PluginError."""
    if all(listener.name != "http" for listener in listeners):
        raise PluginError(
            f"no plugin names the listener 'http' of {process} in disagg_readiness",
            remedy="the engine plugin must say where a worker's head and the router serve HTTP",
        )


def check_told_ports(
    listeners: Iterable[Listener],
    ports: Mapping[str, int],
    flags: Iterable[MergedFlag],
    env: MergedEnv,
    catalogue: Catalogue | None,
    process: str,
) -> None:
    """Refuse a command or a variable that tells a program another port than probes, router and port table have.

    Raises PortError naming both ports, who gave the other one, and how the port is set instead.
    """
    flags = tuple(flags)
    for listener in listeners:
        if listener.name not in ports:
            continue
        port = ports[listener.name]
        for what, told, source in _told(listener, flags, env, catalogue):
            if told is not None and not says(told, port):
                shown = hidden(what, told) if isinstance(told, str) else repr(told)
                raise PortError(
                    f"{what} of {process} says {shown} ({source}) but the plan gives it port {port} as"
                    f" {listener.name!r}",
                    remedy=f"leave it out{_settable(listener)}",
                )


def _settable(listener: Listener) -> str:
    """How the port is set instead, which tells everybody who needs to know it; "" where nothing sets it."""
    if not listener.option:
        return ""
    option = by_dotted().get(listener.option)
    by = f"--set {listener.option}=PORT" if option is None else f"{option.flag} PORT"
    return f" and set the port by {by}, which tells everybody"


def _told(
    listener: Listener, flags: tuple[MergedFlag, ...], env: MergedEnv, catalogue: Catalogue | None
) -> Iterator[tuple[str, Any, Source]]:
    """What tells the program the listener's port: flag or variable, value, who set it."""
    if listener.flag:
        yield (listener.flag, *flag_value(flags, catalogue, listener.flag, listener.flag_key))
    if listener.variable in env.env:
        yield listener.variable, env.env[listener.variable], env.provenance[f"env/{listener.variable}"][0][0]
    elif listener.variable in env.secrets:
        yield listener.variable, A_SECRET, env.provenance[f"secrets/{listener.variable}"][0][0]


def order(
    *,
    kind: str,
    follows: str | None,
    setups: Iterable[str],
    services: Iterable[str],
    heads: Iterable[str],
) -> tuple[After, ...]:
    """What a process waits for.

    Setup waits for nothing, a service for the setups of its rank, a server for setups and services, a follower for its
    head's start as well (never its readiness: the head is ready only when the followers have joined), the router for
    every head.
    """
    if kind == "setup":
        return ()
    edges = [After(process=name, until="ready") for name in setups]
    if kind == "service":
        return tuple(edges)
    edges += [After(process=name, until="ready") for name in services]
    if kind == "server":
        if follows is not None:
            edges.append(After(process=follows, until="started"))
        return tuple(edges)
    edges += [After(process=name, until="ready") for name in heads]
    return tuple(edges)


def check_order(processes: Iterable[PlannedProcess]) -> None:
    """Refuse names used twice, waits for processes that do not exist, and circles of waits, with PlanError."""
    waits: dict[str, tuple[str, ...]] = {}
    for process in processes:
        if process.name in waits:
            raise PlanError(f"two processes are called {process.name!r}", remedy="process names are unique in a plan")
        waits[process.name] = tuple(edge.process for edge in process.after)
    for name, targets in waits.items():
        for target in targets:
            if target not in waits:
                raise PlanError(f"{name} waits for {target!r}, which is no process of the plan")
    done: set[str] = set()
    while len(done) < len(waits):
        free = [name for name, targets in waits.items() if name not in done and done.issuperset(targets)]
        if not free:
            circle = sorted(set(waits) - done)
            raise PlanError(f"these processes wait for each other in a circle: {', '.join(circle)}")
        done.update(free)
