"""Combinations with which ``vllm serve`` ends at its start, for its stand-in; sources of 0.21.0 to 0.32.0."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from disagg_run.simulation.process import Died
from disagg_run.value_meanings import size
from disagg_vllm.simulation_agreement import NIXL_TELLS_DCP

#: First releases looked at that refuse them: the allocator, routed experts, NIXL's decode with pipeline stages.
_ALLOCATOR, _EXPERTS, _STAGES = (0, 21), (0, 22), (0, 26)


def check_start(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    *,
    family: str,
    version: tuple[int, ...],
) -> None:
    """Died with the engine's first word on it, where it refuses what it is started with.

    ``family``: of the connector, as the stand-in sorts it; it has none where there is no --kv-transfer-config.
    """
    if args.kv_transfer_config:
        told = next(_of_connector(args, environ, family, version), None)
        if told is None and family == "nixl":
            told = next(_of_nixl(args, version), None)
        if told is not None:
            raise Died(told)
    if (getattr(args, "enable_fault_tolerance", None) or getattr(args, "fault_tolerance_config", None)) and not (
        args.data_parallel_external_lb or args.data_parallel_rank is not None
    ):
        raise Died("ValueError: Fault tolerance requires external load balancer mode")
    if args.max_num_batched_tokens is not None and args.max_num_batched_tokens < 1:
        raise Died("pydantic ValidationError: max_num_batched_tokens: Input should be greater than or equal to 1")


def _of_connector(
    args: argparse.Namespace, environ: Mapping[str, str], family: str, version: tuple[int, ...]
) -> Iterator[str]:
    expandable = "expandable_segments:True" in environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    kept = args.enable_sleep_mode or getattr(args, "enable_cumem_allocator", None)
    if expandable and not kept and version >= _ALLOCATOR:
        yield "ValueError: KV connector is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    if args.enable_return_routed_experts and version >= _EXPERTS and (family != "none" or version < (0, 32)):
        yield "ValueError: --enable-return-routed-experts is incompatible with KV connectors"


def _of_nixl(args: argparse.Namespace, version: tuple[int, ...]) -> Iterator[str]:
    consumes = (args.kv_transfer_config or {}).get("kv_role") == "kv_consumer"
    if args.pipeline_parallel_size > 1 and consumes and version >= _STAGES:
        yield "NotImplementedError: NixlPushConnector consumer (decode) does not support pipeline_parallel_size > 1."
    dcp = size(args.decode_context_parallel_size)
    if version < NIXL_TELLS_DCP or dcp == 1:
        return
    if dcp != args.tensor_parallel_size:
        told = f"decode_context_parallel_size={dcp} must be 1 or equal to the NIXL transfer parallel size"
        yield f"AssertionError: {told}={args.tensor_parallel_size}."
