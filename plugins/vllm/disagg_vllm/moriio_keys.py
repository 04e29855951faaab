"""MoRI-IO's settings that are variables or keys of its configuration, by release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from disagg_run.context import ProcessContext
from disagg_run.records import EnvSetting
from disagg_run.releases import at_least
from disagg_run.sources import Layer, Source
from disagg_vllm import discovery, rdma

#: Release from which these are keys of the extra config; before, variables, and each is lost in the other's place.
KEYS_SINCE = "0.23"
VARIABLES = {
    "read_mode": "VLLM_MORIIO_CONNECTOR_READ_MODE",
    "qp_per_transfer": "VLLM_MORIIO_QP_PER_TRANSFER",
    "post_batch_size": "VLLM_MORIIO_POST_BATCH_SIZE",
    "num_workers": "VLLM_MORIIO_NUM_WORKERS",
}
#: Release from which each further key is read.
_SINCE = {
    "backend": "0.22",
    **dict.fromkeys(VARIABLES, KEYS_SINCE),
    "transfer_timeout": KEYS_SINCE,
    "defer_timeout": KEYS_SINCE,
    "host_ip": "0.24",
    "recv_abort_timeout": "0.31",
}


def tuning(ctx: ProcessContext) -> Iterator[tuple[str, Any, Source]]:
    """What is a key of the extra config or a variable, by release: key, value, who set it."""
    for key in VARIABLES:
        value = ctx.setting(key, True if key == "read_mode" else None)
        if value is not None:
            yield key, value, rdma.chosen(ctx, key, discovery.NAME)


def later_keys(ctx: ProcessContext) -> tuple[str, ...]:
    """Keys of the extra config that the release does not read yet, and would lose without a word."""
    return tuple(key for key, since in _SINCE.items() if not at_least(ctx.engine_version, since))


def tuning_variables(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The variables that became keys: set for releases that read them, and held to the keys for later ones."""
    given = {key: (str(int(value)), source) for key, value, source in tuning(ctx)}
    if not at_least(ctx.engine_version, KEYS_SINCE):
        for key, (value, source) in given.items():
            yield EnvSetting(VARIABLES[key], value, source=source)
        return
    why = Source(
        layer=Layer.CONNECTOR, plugin=discovery.NAME, why=f"vLLM {ctx.engine_version} does not read the variable"
    )
    for key, name in VARIABLES.items():
        value = given[key][0] if key in given else ""
        op: Literal["set", "unset"] = "set" if value else "unset"
        yield EnvSetting(name, value, op=op, option=f"settings.{key}", implied=True, source=why)
