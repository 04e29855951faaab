"""What SGLang, sglang-router and Mooncake's master need not be told, and by hand may only be told as planned.

Facts are from the sources of SGLang 0.5.23 (its wheel) and from runs of sglang-router 0.3.2 and of mooncake_master
0.3.13. Left free on purpose: ``--fastapi-root-path`` (requests without it are answered all the same),
``--enable-http2`` (HTTP/1.1 is answered too), ``--grpc-port`` (gRPC beside HTTP), ``--enable-pd-role-switch`` (roles
change only when somebody asks), ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` (read where ``env://``
is asked for alone), ``MC_FORCE_TCP``, the ranges in which engines look for free ports (``SGLANG_PORT``,
``MC_MIN_RPC_PORT``), and the router's ``--enable-igw`` (it is told its workers all the same).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from disagg_run.context import ProcessContext
from disagg_run.option_flags import (
    COMPLETES_TEXT,
    NO_KEY,
    PLACED_BY_PLAN,
    PLAIN_HTTP,
    UNSEEN_FILE,
    held_variable,
    implied_flag,
    meeting_variables,
    never_flag,
    refused_values,
)
from disagg_run.records import FIXED, EnvSetting, Flag
from disagg_run.releases import at_least
from disagg_run.roles import dp_ranks
from disagg_run.spec.model import Role

_JOINER = "the plan has all ranks of a worker from the start"
_OWN_GPUS = "the plan chooses a server's GPUs by those that it sees"

#: Of every server.
SERVERS = (
    never_flag("--config", UNSEEN_FILE),
    never_flag("--ssl-keyfile", PLAIN_HTTP),
    never_flag("--ssl-certfile", PLAIN_HTTP),
    never_flag("--grpc-mode", PLAIN_HTTP),
    never_flag("--smg-grpc-mode", PLAIN_HTTP),
    never_flag("--api-key", f"{NO_KEY}: ask for keys in front of the router"),
    never_flag("--encoder-only", COMPLETES_TEXT),
    never_flag("--is-embedding", COMPLETES_TEXT),
    never_flag("--skip-tokenizer-init", COMPLETES_TEXT),
    never_flag("--gated-launch-port", "the server would wait for a gate that nobody opens"),
    refused_values("--weight-cache-mode", "daemon", why="the process would hold weights and serve nothing"),
    never_flag("--use-ray", PLACED_BY_PLAN),
    never_flag("--enable-pdmux", "one server would prefill and decode, which the engine refuses with a role"),
    never_flag("--elastic-ep-join-mode", _JOINER),
    implied_flag("--base-gpu-id", 0, option=FIXED, why=_OWN_GPUS),
    implied_flag("--gpu-id-step", 1, option=FIXED, why=_OWN_GPUS),
    never_flag("--nccl-port", "the engine takes a port that is free, or that on which the worker's nodes meet"),
)
_REJOIN = never_flag("--elastic-ep-rejoin", _JOINER)
_ONE_NODE = never_flag("--dist-init-addr", "the worker has one node, and the engine takes ports that are free")
#: Where HiCache is not asked for, and where it is: the engine refuses both together.
_NO_HICACHE = never_flag(
    "--enable-hierarchical-cache", "the prefix cache is off, without which there is none: use --set kv_offloading=dram"
)
_PREFIX_CACHE = never_flag("--disable-radix-cache", "HiCache needs it: leave out kv_offloading for none")

#: Of the router.
ROUTER = (
    never_flag("--worker-urls", "a worker is prefill or decode"),
    never_flag("--service-discovery", "the router is told its workers"),
    never_flag("--mini-lb", "it has no answer to say that its workers are ready"),
    never_flag("--tls-cert-path", PLAIN_HTTP),
    never_flag("--tls-key-path", PLAIN_HTTP),
    never_flag("--api-key", "the plan's own generation brings no key, and it would stand in the plan"),
    implied_flag("--backend", "sglang", option="engine"),
)


def server_flags(ctx: ProcessContext) -> Iterable[Flag]:
    """What a server of this process's role, on so many nodes, is not told."""
    role = ctx.role_spec
    layout = (ctx.process.node_count == 1, role.expert_parallel, role.dp_attention)
    flags = _of_layout(ctx.process.role or "prefill", *layout, at_least(ctx.engine_version, "0.5.23"))
    beside = ctx.peers.values() if ctx.rank == 0 else ()
    taken = frozenset(port for ports in (ctx.ports, *beside) for port in ports.values())
    flags += _further_ports(taken)
    return flags if at_least(ctx.engine_version, "0.5.12") else (*flags, *_of_the_other(ctx))


@functools.cache
def _further_ports(taken: frozenset[int]) -> tuple[Flag, ...]:
    """Ports that no plan has and a user may open beside: any but those that are ``taken`` on the node."""
    why = "the plan gives that port of the node to something else"
    ports = tuple(map(str, sorted(taken)))
    names = ("--grpc-port", "--engine-info-bootstrap-port", "--encoder-bootstrap-port")
    return tuple(refused_values(name, *ports, why=why) for name in names)


@functools.cache
def _of_layout(role: Role, one_node: bool, experts: bool, dp_attention: bool, newest: bool) -> tuple[Flag, ...]:
    """The same for all servers that are alike in this; made once, for plans of a thousand nodes."""
    flags = list(SERVERS)
    if one_node:
        flags.append(_ONE_NODE)
    # Under expert parallelism every GPU of the worker has its own experts.
    flags.append(implied_flag("--moe-dp-size" if experts else "--ep-size", 1, option=f"{role}.expert_parallel"))
    if not (experts and dp_attention):  # it switches both on
        flags.append(implied_flag("--dwdp-size", 1, option=f"{role}.dp_attention"))
    if not newest:  # it is gone
        flags.append(_REJOIN)
    return tuple(flags)


def _of_the_other(ctx: ProcessContext) -> Iterator[Flag]:
    """What 0.5.9 may be told of the other role, which later releases ask for."""
    if ctx.process.role == "decode":
        yield implied_flag("--disaggregation-prefill-pp", ctx.spec.prefill.pp, option="prefill.pp")
        return
    decode = ctx.spec.decode
    yield implied_flag("--disaggregation-decode-tp", decode.tp, option="decode.tp")
    yield implied_flag("--disaggregation-decode-dp", dp_ranks(decode), option="decode.dp")


def prefix_cache(*, hicache: bool) -> Flag:
    """What a prefill server may not be given, with HiCache or without a prefix cache."""
    return _PREFIX_CACHE if hicache else _NO_HICACHE


#: Further texts for a variable that is off (``environ.py``), in the letter cases that people write.
_OFF = tuple(way for text in ("false", "no", "n") for way in (text, text.capitalize(), text.upper()))
_VARIABLES = (
    held_variable("SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", why="ranks meet where the plan says"),
    held_variable("SGLANG_RUST_SERVER", "0", why="it would wait for decode on its HTTP port", agreeing=_OFF),
)


def server_variables(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """Variables by which a server would meet, wait or be known elsewhere than planned."""
    yield from _VARIABLES
    yield from meeting_variables(ctx)
    yield held_variable("HOST_IP", ctx.node.address, why="SGLANG_HOST_IP is read first")


# --- Mooncake's master -------------------------------------------------------------------------------------------

_UNSEEN = "flags of a file or of variables are seen by nobody here: write them out as args"
_METADATA = "the store's clients ask it where the others are"

_MASTER = (
    *(never_flag(f"--{name}", _UNSEEN) for name in ("config_path", "flagfile", "fromenv", "tryfromenv")),
    never_flag("--rpc_interface", "clients are told the node's address"),
    refused_values("--enable_http_metadata_server", "false", "f", "0", "no", "n", why=_METADATA),
    never_flag("--noenable_http_metadata_server", _METADATA),
    implied_flag("--enable_ha", "false", option=FIXED, why="clients are told one master"),
)
#: Where it waits; its own default of each is every IPv4 address.
_MASTER_HOSTS = ("--rpc_address", "--http_metadata_server_host", "--metrics_host")


def master_flags(address: str, told: Iterable[Flag]) -> Iterator[Flag]:
    """What the store's master on the node of ``address`` is not told beside the flags that it is ``told``.

    Its parser also takes one dash for two, and a dash for each underscore: those spellings would be flags of their own.
    """
    hosts = [implied_flag(name, "0.0.0.0", option=FIXED, agreeing=(address,)) for name in _MASTER_HOSTS]
    yield from (*_MASTER, *hosts)
    for name in dict.fromkeys(each.name for each in (*told, *_MASTER, *hosts)):
        plain = name.lstrip("-")
        dashes = plain.replace("_", "-")
        for other in sorted({f"-{plain}", f"-{dashes}", f"--{dashes}"} - {name}):
            yield never_flag(other, f"it is {name}: write it so")
