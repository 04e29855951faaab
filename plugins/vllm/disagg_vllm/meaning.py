"""What values mean to vLLM where two spellings are one; sources of 0.21.0 and 0.32.0."""

from __future__ import annotations

from typing import Any


def attention_backend(value: Any) -> Any:
    """An ``--attention-backend``, in any letter case; ``auto`` is none (``AttentionConfig``)."""
    name = str(value or "auto").upper()
    return None if name in ("AUTO", "NONE") else name


def switch(value: Any) -> bool:
    """A variable that is off where it is not set (``envs.py``)."""
    return str(value).lower() in ("true", "1")


def switch_on(value: Any) -> bool:
    """A variable that is on where it is not set (``envs.py``)."""
    return value is None or switch(value)


def kv_cache_layout(value: Any) -> Any:
    """``VLLM_KV_CACHE_LAYOUT``: the two names of older releases are names of today's layouts (0.32.0)."""
    return {"NHD": "LBNHC", "HND": "LBHNC"}.get(value, value)


def reads(value: Any) -> bool:
    """MoRI-IO's READ mode, key ``read_mode`` or variable: WRITE is what all but two texts mean."""
    return str(value).lower().strip() in ("true", "1")


def moriio_backend(value: Any) -> str:
    """MoRI-IO's key ``backend``, in any letter case."""
    return str(value or "rdma").lower()


def nixl_backends(value: Any) -> Any:
    """NIXL's key ``backends``."""
    return ["UCX"] if value is None else value
