"""What can be explained of one process of a plan: flags and their JSON leaves, variables, ports, waits, proofs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from disagg_run.flag_claims import dotted_key, json_text
from disagg_run.gpus import VISIBILITY
from disagg_run.planning.document import Group, PlannedProcess, Ready
from disagg_run.planning.provenance import Provenance
from disagg_run.sources import CORE_DEFAULT, Layer, Source
from disagg_run.spec.model import as_tuple

#: Sections of a process that hold variables, with the word that an answer puts before the value.
_SECTIONS = {"env": "", "env_prepend": "prepend ", "env_append": "append ", "unset": "", "secrets": ""}
_ORDER_WHY = {
    "started": "a follower starts when its worker's head has started",
    "listening": "it needs the other's port",
    "ready": "setups end and services are ready before servers start, and heads are ready before the router starts",
}


@attrs.frozen(kw_only=True)
class Explanation:
    """One value, who set it, and what that replaced."""

    #: What it is called in the plan: ``--block-size``, ``PATH``, ``http``.
    name: str
    value: str
    #: Who set it; None where the plan does not record it.
    source: Source | None
    #: Who wanted something else, and what; the nearest first.
    replaced: Provenance = attrs.field(default=(), converter=as_tuple)
    #: Processes of which all this is true, in plan order; () = the whole plan.
    processes: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)


class ProcessValues:
    """What can be explained of one process."""

    def __init__(
        self,
        process: PlannedProcess,
        group: Group,
        sources: Mapping[tuple[str, ...], Provenance],
        group_sources: Mapping[tuple[str, ...], Provenance],
    ) -> None:
        self._process = process
        self._group = group
        self._sources = sources
        self._group_sources = group_sources
        self._flags = [key[1] for key in sources if len(key) == 2 and key[0] == "argv"]

    def names(self) -> Iterator[str]:
        """All that can be asked for."""
        process = self._process
        for flag in self._flags:
            yield flag
            for leaf in self._leaves(flag):
                yield f"{flag}.{leaf}"
        for section in _SECTIONS:
            yield from getattr(process, section)
        yield from process.ports
        yield from (patch.id for patch in self._group.patches)
        yield from ("after", "ready", "gpus")

    def answers(self, name: str) -> list[Explanation]:
        """What ``name`` means here; none where it means nothing."""
        found = [] if name.startswith("-") else [*self._variable(name), *self._others(name)]
        return found or list(self._flag(name))

    # flags

    def _flag(self, name: str) -> Iterator[Explanation]:
        for flag in self._flags:
            if plain(flag) == plain(name):
                yield from self._whole_flag(flag)
                return
        for flag in self._flags:
            if plain(name).startswith(f"{plain(flag)}."):
                leaf = name.lstrip("-")[len(plain(flag)) + 1 :]
                if leaf in self._leaves(flag):
                    yield self._leaf(flag, leaf)
                    return

    def _whole_flag(self, flag: str) -> Iterator[Explanation]:
        entries = list(self._sources["argv", flag])
        occurrences = self._words(flag)
        leaves = self._leaves(flag)
        if leaves:
            for leaf in leaves:
                yield self._leaf(flag, leaf)
            return
        for words in occurrences or [()]:
            value = shlex.join(words) if words else "set (a switch)"
            texts = {shlex.join(words), " ".join(words), flag if not words else ""}
            at = 0
            if len(occurrences) > 1:
                at = next((index for index, (_, text) in enumerate(entries) if text in texts), 0)
            source = entries.pop(at)[0] if entries else None
            replaced = entries if len(occurrences) <= 1 else ()
            yield Explanation(name=flag, value=value, source=source, replaced=replaced)

    def _leaf(self, flag: str, leaf: str) -> Explanation:
        whole = self._sources["argv", flag]
        provenance = self._sources.get(("argv", flag, leaf), ())
        source = provenance[0][0] if provenance else whole[0][0]
        replaced = [
            (who, text.removeprefix(f"{leaf}=")) for who, text in whole[1:] if text.startswith(f"{leaf}=")
        ] + list(provenance[1:])
        return Explanation(
            name=f"{flag}.{leaf}", value=json_text(self._leaves(flag)[leaf]), source=source, replaced=replaced
        )

    def _words(self, flag: str) -> list[tuple[str, ...]]:
        """The values of each occurrence of a flag in the argv."""
        argv, flags = self._process.argv, set(self._flags)
        found: list[tuple[str, ...]] = []
        for index, word in enumerate(argv):
            if word.startswith(f"{flag}="):
                found.append((word[len(flag) + 1 :],))
            elif word == flag:
                end = index + 1
                while end < len(argv) and argv[end].partition("=")[0] not in flags:
                    end += 1
                found.append(argv[index + 1 : end])
        return found

    def _leaves(self, flag: str) -> dict[str, Any]:
        """The leaves of a flag's JSON object by dotted key; none where its value is none."""
        words = self._words(flag)
        if len(words) != 1 or len(words[0]) != 1 or not words[0][0].startswith("{"):
            return {}
        try:
            value = json.loads(words[0][0])
        except ValueError:
            return {}
        return dict(_flat(value, ()))

    # the rest

    def _variable(self, name: str) -> Iterator[Explanation]:
        for section, prefix in _SECTIONS.items():
            held = getattr(self._process, section)
            if name not in held:
                continue
            provenance = self._sources.get((section, name), ())
            if section in ("env_prepend", "env_append"):
                by_text = {text: source for source, text in reversed(provenance)}
                for element in held[name]:
                    yield Explanation(name=name, value=f"{prefix}{element}", source=by_text.get(element))
                continue
            shown = {"unset": "not passed on", "secrets": "passed on from the agent's environment by name"}
            value = shown[section] if section in shown else held[name]
            yield Explanation(name=name, value=value, source=_first(provenance), replaced=provenance[1:])

    def _others(self, name: str) -> Iterator[Explanation]:
        process = self._process
        if name in process.ports:
            provenance = self._sources.get(("ports", name), ())
            value = process.port_text(name)
            yield Explanation(name=name, value=value, source=_first(provenance), replaced=provenance[1:])
        for patch in self._group.patches:
            if patch.id == name:
                provenance = self._group_sources.get(("patches", name), ())
                yield Explanation(name=name, value=patch.why, source=_first(provenance), replaced=provenance[1:])
        if name == "after":
            for until in dict.fromkeys(edge.until for edge in process.after):
                names = ", ".join(edge.process for edge in process.after if edge.until == until)
                source = Source(layer=Layer.CORE, why=_ORDER_WHY[until])
                yield Explanation(name=name, value=f"{names} {until}", source=source)
        elif name == "ready":
            for ready in process.ready:
                yield Explanation(name=name, value=str(ready), source=self._prover(ready))
        elif name == "gpus" and process.gpus:
            yield Explanation(name=name, value=",".join(map(str, process.gpus)), source=self._gpu_chooser())

    def _gpu_chooser(self) -> Source:
        """Who chose a server's GPUs: the plan, or a variable by hand."""
        for name in VISIBILITY:
            source = _first(self._sources.get(("env", name), ()))
            if source is not None and source.layer >= Layer.CONTRACT:
                return source
        return Source(layer=Layer.CORE, why="the first free GPUs of its node")

    def _prover(self, ready: Ready) -> Source | None:
        """Who asked for a proof: whoever named the listener that it stands in."""
        if ready.kind == "exit":
            return CORE_DEFAULT
        return _first(self._sources.get(("ports", ready.identity.get("listener", "")), ()))


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, (*path, key))
        else:
            yield dotted_key((*path, key)), item


def _first(provenance: Provenance) -> Source | None:
    return provenance[0][0] if provenance else None


def plain(flag: str) -> str:
    """A flag's name without what spellings differ in."""
    return flag.lstrip("-").replace("_", "-")
