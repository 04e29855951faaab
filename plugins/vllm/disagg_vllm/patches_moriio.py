"""The patch plugin ``vllm-moriio-patches``: bounds for MoRI-IO's waits, on every vLLM release.

One wish, realised by a source patch up to vLLM 0.22.1 and by a setting of ``--kv-transfer-config`` from 0.23.0
(vllm#40344). The bounds have one name each here, with their unit, and reach patched code as variables. The patches are
the YAML files in ``patches/``; ``digests.json`` there has what they make of each release.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension, Setting
from disagg_run.errors import PlanError, SpecError
from disagg_run.hookspecs import hookimpl
from disagg_run.patching import is_needed, read_patches
from disagg_run.records import EnvSetting, Flag, Patch
from disagg_run.sources import CORE_DEFAULT, Layer, Source
from disagg_vllm.transfer import CONFIG, EXTRA

NAME = "vllm-moriio-patches"
_FILES = Path(__file__).parent / "patches"


@attrs.frozen
class Bound:
    """A time after which patched code, or vLLM itself, gives up."""

    #: Setting, in seconds.
    setting: str
    #: vLLM's own default, in seconds (0.23.0 and after), which is ours for the releases before.
    default: float
    #: Variable that patched code reads.
    variable: str
    #: Key of ``kv_connector_extra_config`` from 0.23.0 on.
    key: str


TRANSFER = Bound("moriio_transfer_timeout_s", 30.0, "DISAGG_MORIIO_TRANSFER_TIMEOUT_S", "transfer_timeout")
DEFER = Bound("moriio_defer_timeout_s", 60.0, "DISAGG_MORIIO_DEFER_TIMEOUT_S", "defer_timeout")

#: The bounds that each patch brings.
BOUNDS = {
    "moriio-save-kv-timeout": (TRANSFER,),
    "moriio-load-kv-timeout": (TRANSFER,),
    "moriio-transfer-timeout": (TRANSFER, DEFER),
    "prefill-idle-kv-reaper": (DEFER,),
}

#: A wait of less would give up at once, one of more than a week is none, in seconds.
LEAST_S, MOST_S = 0.001, 604800.0

SETTINGS = (
    Setting(
        name=TRANSFER.setting,
        type="float",
        summary="seconds until MoRI-IO gives up a handshake or a transfer (30)",
    ),
    Setting(
        name=DEFER.setting,
        type="float",
        summary="seconds until a prefill frees blocks that no decode has asked for or acknowledged (60)",
    ),
)


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name=NAME,
        summary="bounds for MoRI-IO's waits, by patch up to vLLM 0.22 and by setting after; NIXL's UCX error mode",
        kind="patches",
        engines=("vllm-disagg",),
        settings=SETTINGS,
        patch_sets=("moriio", "nixl"),
    )


@hookimpl
def disagg_patches(ctx: RankContext) -> Iterable[Patch]:
    return offered()


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    if ctx.process.kind != "server":
        return ()
    return [
        EnvSetting(bound.variable, number_text(seconds(ctx, bound)), source=_source(ctx, bound, patch, "is patched in"))
        for bound, patch in _bounds(ctx, needed=True).items()
    ]


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    bounds = _bounds(ctx, needed=False) if ctx.process.kind == "server" else {}
    if not bounds:
        return ()
    values = {bound.key: seconds(ctx, bound) for bound in bounds}
    sources = {f"{EXTRA}.{bound.key}": _source(ctx, bound, patch, "is a setting of") for bound, patch in bounds.items()}
    return [Flag(CONFIG, json={EXTRA: values}, leaf_sources=sources)]


@functools.cache
def offered() -> tuple[Patch, ...]:
    """All patches, with their edits for every release."""
    digests = _FILES / "digests.json"
    return tuple(patch for file in sorted(_FILES.glob("*.yaml")) for patch in read_patches(file, digests))


def asked_for(names: Iterable[str]) -> tuple[Patch, ...]:
    """The patches that a plan's names mean, by id or set."""
    names = set(names)
    return tuple(patch for patch in offered() if patch.id in names or names & set(patch.sets))


def seconds(ctx: RankContext, bound: Bound) -> float:
    """The user's value of a bound, or its default, in seconds.

    Raises SpecError for one that is no time, or longer than a week.
    """
    value = float(ctx.setting(bound.setting, bound.default))
    if not LEAST_S <= value <= MOST_S:
        raise SpecError(
            f"{bound.setting} is {number_text(value)} ({ctx.source(bound.setting)})",
            remedy=f"give a number of seconds between {LEAST_S:g} and {MOST_S:g}",
        )
    return value


def number_text(value: float) -> str:
    """All digits of a number, without a fraction where it has none."""
    return str(int(value)) if value.is_integer() else repr(value)


def _bounds(ctx: ProcessContext, *, needed: bool) -> dict[Bound, Patch]:
    """The bounds that come by patch (``needed``) or by setting, each with the first patch that asks for it."""
    found: dict[Bound, Patch] = {}
    for patch in asked_for(ctx.spec.patches):
        for bound in BOUNDS.get(patch.id, ()):
            if is_needed(patch, ctx.engine_version) is needed:
                found.setdefault(bound, patch)
    if found and "moriio" not in ctx.connector:
        patch = next(iter(found.values()))
        raise PlanError(
            f"patch {patch.id!r} is for the connector vllm-moriio, and the plan has {ctx.connector}",
            remedy="leave it out, or choose --connector vllm-moriio",
        )
    return found


def _source(ctx: ProcessContext, bound: Bound, patch: Patch, how: str) -> Source:
    asked = ctx.source(bound.setting)
    source = Source(layer=Layer.SITE, plugin=NAME) if asked == CORE_DEFAULT else asked
    return attrs.evolve(source, why=f"patch {patch.id}, which {how} vLLM {ctx.engine_version}")
