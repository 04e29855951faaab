"""What the KV connectors have in common: the backend's name, the RDMA devices, what both roles must share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import attrs

from disagg_run import rdma
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import SharedValue
from disagg_run.node_needs import forced_gid, nic_checks
from disagg_run.option_flags import implied_flag
from disagg_run.records import EnvSetting, Flag, Preflight, flag
from disagg_run.sources import Layer, Source

_IB_DEVICE = "--disaggregation-ib-device"

_ENGINE_CHOOSES = implied_flag(_IB_DEVICE, option="ib_devices", why="the engine chooses devices")

PARITY = (
    SharedValue(
        name="transfer-backend",
        flag="--disaggregation-transfer-backend",
        why="one side cannot read what the other's backend sends",
    ),
)


def devices(ctx: RankContext, plugin: str) -> tuple[tuple[str, ...], Source]:
    """The RDMA devices that carry KV, and who chose them; () = the engine chooses. SpecError where some are missing."""
    rdma.check_devices(ctx)
    return rdma.devices(ctx, Source(layer=Layer.CONNECTOR, plugin=plugin))


def flags(ctx: ProcessContext, plugin: str, backend: str) -> Iterator[Flag]:
    """What a server is told of KV transfer."""
    if ctx.process.role is None:
        return
    yield flag("--disaggregation-transfer-backend", backend, option="connector")
    names, source = devices(ctx, plugin)
    rdma.check_meeting(ctx, names, remedy="let both use one device by --ib-devices NAME")
    same = _same_devices(ctx, names)
    if names:
        told = flag(_IB_DEVICE, ",".join(names), source=source, option="ib_devices")
        yield attrs.evolve(told, agreeing=same) if same else told
    elif not same:
        yield _ENGINE_CHOOSES


def _same_devices(ctx: ProcessContext, names: tuple[str, ...]) -> tuple[str, ...]:
    """What a user gave that names these very devices, in another order or as the engine's mapping from GPU to devices.

    A file of such a mapping is left to the user, as is a mapping where the engine chooses devices: no option says it.
    """
    own = ctx.spec.processes.get(ctx.process.name)
    asked = (*ctx.spec.args, *ctx.role_spec.args, *(own.args if own else ()))
    return tuple(value for text in asked for value in _values(text.words) if _means(value, names))


def _values(words: Sequence[str]) -> Iterator[str]:
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name == _IB_DEVICE:
            yield value if equals else following


def _means(word: str, names: tuple[str, ...]) -> bool:
    if word.endswith(".json"):
        return True
    if not word.lstrip().startswith("{"):
        return bool(names) and {part.strip() for part in word.split(",")} == set(names)
    try:
        mapping = json.loads(word)
    except ValueError:
        return False
    return not names or {part.strip() for value in mapping.values() for part in str(value).split(",")} <= set(names)


def environment(ctx: ProcessContext, plugin: str, *gid_variables: str) -> Iterator[EnvSetting]:
    """The same devices for NCCL, and where the automatic GID index would be wrong, that, in ``gid_variables`` too."""
    names, source = devices(ctx, plugin)
    if names:
        yield EnvSetting("NCCL_IB_HCA", rdma.collective_devices(ctx, names), source=source)
    forced = forced_gid(rdma.known_nics(ctx, names)) if ctx.process.kind == "server" else None
    if forced is not None:
        index, why = forced
        for name in ("NCCL_IB_GID_INDEX", *gid_variables):
            yield EnvSetting(name, str(index), source=Source(layer=Layer.CONNECTOR, plugin=plugin, why=why))


def checks(ctx: RankContext, plugin: str) -> Iterator[Preflight]:
    """The devices are on the node."""
    names, _ = devices(ctx, plugin)
    yield from nic_checks(names)
