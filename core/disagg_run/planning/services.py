"""Service and setup processes: named, given their ports, and merged like the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from disagg_run.context import Process, RankContext
from disagg_run.errors import PluginError
from disagg_run.flags import merge_flags, render, split_words
from disagg_run.host import Selection
from disagg_run.planning.assembly import ProcessDraft
from disagg_run.planning.commands import asked_args, checked_env, flag_provenance
from disagg_run.planning.contexts import process_context
from disagg_run.planning.owned import check_owned
from disagg_run.planning.readiness import check_told_ports
from disagg_run.planning.secret_values import check_asked_flags
from disagg_run.planning.simulated import stand_in_exec
from disagg_run.records import Flag, ServiceProcess
from disagg_run.spec.model import ArgText

_PORT = re.compile(r"\{port:([a-z0-9_-]+)\}")


@attrs.frozen(kw_only=True)
class ServiceDraft:
    """A service or setup process before its ports are known."""

    #: Unique in the plan.
    name: str
    rank: int
    plugin: str
    record: ServiceProcess


def collect_services(selection: Selection, ranks: Sequence[RankContext]) -> tuple[ServiceDraft, ...]:
    """Ask every rank's services; a name that several ranks use gets ``@RANK`` behind it."""
    found = [
        (each.record.name, rank.rank, each.plugin, each.record) for rank in ranks for each in selection.services(rank)
    ]
    users: dict[str, set[int]] = {}
    for name, rank_index, _, _ in found:
        users.setdefault(name, set()).add(rank_index)
    return tuple(
        ServiceDraft(
            name=f"{name}@{rank_index}" if len(users[name]) > 1 else name,
            rank=rank_index,
            plugin=plugin,
            record=record,
        )
        for name, rank_index, plugin, record in found
    )


def finish_service(
    selection: Selection, rank: RankContext, draft: ServiceDraft, ports: Mapping[str, int]
) -> ProcessDraft:
    """The service's process with its ports filled into its command."""
    record = draft.record
    process = Process(name=draft.name, kind=record.kind)
    ctx = process_context(rank, process, ports)
    planned = [attrs.evolve(flag, values=_filled(flag.values, ports, draft)) for flag in record.command.flags]
    words = asked_args(ctx)
    further = [flag for text in words for flag in split_words(text.words, None, text.source)]
    merged = merge_flags((each for each in (*planned, *further) if not each.implied), None, where=draft.name)
    check_owned(planned, further, merged, None, ctx)
    check_asked_flags(merged, ctx)
    env = checked_env(record.env, ctx)
    check_told_ports(record.listeners, ports, merged, env, None, draft.name)
    program = _filled(record.command.program, ports, draft)
    argv = (*program, *render(merged, _joined(planned, words)))
    return ProcessDraft(
        process=process,
        argv=argv,
        exec=stand_in_exec(selection, ctx, argv, program),
        env=env,
        ports=ports,
        listeners=record.listeners,
        flags=merged,
        provenance=flag_provenance(merged),
        image=record.command.image,
        scope=record.scope,
    )


def _joined(planned: Iterable[Flag], asked: Iterable[ArgText]) -> set[str]:
    """The flags that stand in one word with their value, as planned or as a user typed them.

    Without a catalogue nobody knows what is a switch, and many parsers take ``--x false`` for ``--x`` and a further
    word.
    """
    typed = {word.partition("=")[0] for text in asked for word in text.words if word.startswith("-") and "=" in word}
    return typed | {flag.name for flag in planned if flag.joined}


def _filled(words: Iterable[str], ports: Mapping[str, int], draft: ServiceDraft) -> tuple[str, ...]:
    """The words with each ``{port:NAME}`` replaced by the listener's port."""

    def port(match: re.Match[str]) -> str:
        if match[1] not in ports:
            raise PluginError(
                f"plugin {draft.plugin!r} writes {match[0]} in the command of {draft.name}, which has no listener"
                f" {match[1]!r}",
                remedy=f"its listeners are {', '.join(ports) or 'none'}",
            )
        return str(ports[match[1]])

    return tuple(_PORT.sub(port, word) for word in words)
