"""What a stand-in of ``vllm serve`` compares with its peer before KV moves; sources of 0.22.1 to 0.32.0."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from disagg_run.simulation.process import Died
from disagg_run.value_meanings import number_format, size
from disagg_vllm import meaning

#: First release looked at whose NIXL peers tell each other their decode context parallelism.
NIXL_TELLS_DCP = (0, 30)

_FLAGS_OF_SPECULATION = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
_LAYOUTS = {
    "VLLM_KV_CACHE_LAYOUT": meaning.kv_cache_layout,
    "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": meaning.switch,
    "VLLM_MLA_DISABLE": meaning.switch,
    "VLLM_ROCM_USE_AITER": meaning.switch,
    "VLLM_ROCM_USE_AITER_MLA": meaning.switch_on,
    "VLLM_ROCM_USE_AITER_MHA": meaning.switch_on,
}


def agreement(
    args: argparse.Namespace, environ: Mapping[str, str], *, family: str, version: tuple[int, ...]
) -> dict[str, Any]:
    """What prefill and decode must have in common, by a name for messages; Died where the engine refuses its own.

    NIXL's hash has the method of speculation alone, and its peers may differ in context parallelism from 0.30.0;
    the other connectors compare nothing themselves.
    """
    speculation = _speculation(args)
    found: dict[str, Any] = {
        "kv_cache_dtype": args.kv_cache_dtype,
        "dtype": number_format(args.dtype),
        "attention_backend": _attention_backend(args),
        **{name: means(environ.get(name)) for name, means in _LAYOUTS.items()},
    }
    if family != "nixl":
        found |= {"block_size": args.block_size, "speculation": speculation}
    else:
        found["speculation"] = speculation.get("method") if speculation else None
    if family != "nixl" or version < NIXL_TELLS_DCP:
        found["decode_context_parallel_size"] = size(args.decode_context_parallel_size)
    return found


def _speculation(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """``--speculative-config`` with what the flags beside it write into it."""
    given = args.speculative_config
    config = dict(given) if isinstance(given, Mapping) else {}
    for name, key in _FLAGS_OF_SPECULATION.items():
        value = getattr(args, name, None)  # older parsers have no such flag
        if value is None:
            continue
        if key in config:
            flag = f"--{name.replace('_', '-')}"
            raise Died(f"ValueError: {flag} and --speculative-config[{key!r}] are mutually exclusive")
        config[key] = value
    return config or None


def _attention_backend(args: argparse.Namespace) -> Any:
    config = args.attention_config
    other = config.get("backend") if isinstance(config, Mapping) else None
    if args.attention_backend is not None and other is not None:
        raise Died("ValueError: attention_backend and attention_config.backend are mutually exclusive")
    return meaning.attention_backend(args.attention_backend or other)
