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

import attrs

from disagg_run.context import ProcessContext, any_address
from disagg_run.option_flags import implied_flag
from disagg_run.records import FIXED, EnvSetting, Flag
from disagg_run.releases import at_least
from disagg_run.roles import dp_ranks
from disagg_run.sources import CORE_DEFAULT
from disagg_run.spec.model import Role


def _never(name: str, why: str) -> Flag:
    """A flag that nobody may give; built once, for plans of a thousand nodes."""
    return implied_flag(name, option=FIXED, why=why)


_PLAIN = "probes and the router speak plain HTTP"
_NO_KEY = (
    "neither probes nor the router bring a key, and it would stand in the plan: ask for keys in front of the router"
)
_GENERATES = "a run is ready when a text is completed"
_OWN_LAUNCHER = "the plan places each process itself"
_JOINER = "the plan has all ranks of a worker from the start"
_OWN_GPUS = "the plan chooses a server's GPUs by those that it sees"

#: Of every server.
SERVERS = (
    _never("--config", "flags of a file are seen by nobody here: write them out as --args"),
    _never("--ssl-keyfile", _PLAIN),
    _never("--ssl-certfile", _PLAIN),
    _never("--grpc-mode", _PLAIN),
    _never("--smg-grpc-mode", _PLAIN),
    _never("--api-key", _NO_KEY),
    _never("--encoder-only", _GENERATES),
    _never("--is-embedding", _GENERATES),
    _never("--skip-tokenizer-init", _GENERATES),
    _never("--gated-launch-port", "the server would wait for a gate that nobody opens"),
    attrs.evolve(
        _never("--weight-cache-mode", "the process would hold weights and serve nothing"), contrary=("daemon",)
    ),
    _never("--use-ray", _OWN_LAUNCHER),
    _never("--enable-pdmux", "one server would prefill and decode, which the engine refuses with a role"),
    _never("--elastic-ep-join-mode", _JOINER),
    implied_flag("--base-gpu-id", 0, option=FIXED, why=_OWN_GPUS),
    implied_flag("--gpu-id-step", 1, option=FIXED, why=_OWN_GPUS),
    _never("--nccl-port", "the engine takes a port that is free, or that on which the worker's nodes meet"),
)
_REJOIN = _never("--elastic-ep-rejoin", _JOINER)
_ONE_NODE = _never("--dist-init-addr", "the worker has one node, and the engine takes ports that are free")
#: Where HiCache is not asked for, and where it is: the engine refuses both together.
_NO_HICACHE = _never(
    "--enable-hierarchical-cache", "the prefix cache is off, without which there is none: use --set kv_offloading=dram"
)
_PREFIX_CACHE = _never("--disable-radix-cache", "HiCache needs it: leave out kv_offloading for none")

#: Of the router.
ROUTER = (
    _never("--worker-urls", "a worker is prefill or decode"),
    _never("--service-discovery", "the router is told its workers"),
    _never("--mini-lb", "it has no answer to say that its workers are ready"),
    _never("--tls-cert-path", _PLAIN),
    _never("--tls-key-path", _PLAIN),
    _never("--api-key", "the plan's own generation brings no key, and it would stand in the plan"),
    implied_flag("--backend", "sglang", option="engine"),
)


def server_host(ctx: ProcessContext) -> Flag:
    """Where a server waits: at every address of its node's family; the node's own is right too."""
    address = ctx.node.address
    return Flag("--host", (any_address(address),), option=FIXED, agreeing=(address,), per_node=("",))


def router_host(ctx: ProcessContext) -> Flag:
    """Where the router waits: its default is every IPv4 address.

    For IPv6 it is told: 0.3.2 takes "::" for no address ("invalid socket address syntax").
    """
    address = ctx.node.address
    if ":" in address:
        return Flag("--host", ("[::]",), option=FIXED, agreeing=(f"[{address}]",))
    return attrs.evolve(implied_flag("--host", "0.0.0.0", option=FIXED), agreeing=(address, "[::]"))


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
    return tuple(attrs.evolve(_never(name, why), contrary=ports) for name in names)


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


def held_variable(name: str, value: str = "", *, why: str, option: str = FIXED) -> EnvSetting:
    """A variable that may only have this value, or, where there is none, that nobody may set."""
    source = attrs.evolve(CORE_DEFAULT, why=why)
    return EnvSetting(name, value, op="set" if value else "unset", option=option, implied=True, source=source)


_VARIABLES = (
    held_variable("SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", why="ranks meet where the plan says"),
    held_variable("SGLANG_RUST_SERVER", "0", why="it would wait for decode on its HTTP port"),
)


def server_variables(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """Variables by which a server would meet, wait or be known elsewhere than planned."""
    yield from _VARIABLES
    yield held_variable("HOST_IP", ctx.node.address, why="SGLANG_HOST_IP is read first")


# --- Mooncake's master -------------------------------------------------------------------------------------------

_UNSEEN = "flags of a file or of variables are seen by nobody here: write them out as args"
_METADATA = "the store's clients ask it where the others are"

_MASTER = (
    *(_never(f"--{name}", _UNSEEN) for name in ("config_path", "flagfile", "fromenv", "tryfromenv")),
    _never("--rpc_interface", "clients are told the node's address"),
    attrs.evolve(_never("--enable_http_metadata_server", _METADATA), contrary=("false", "f", "0", "no", "n")),
    _never("--noenable_http_metadata_server", _METADATA),
    implied_flag("--enable_ha", "false", option=FIXED, why="clients are told one master"),
)
#: Where it waits; its own default of each is every IPv4 address.
_MASTER_HOSTS = ("--rpc_address", "--http_metadata_server_host", "--metrics_host")


def master_flags(address: str, told: Iterable[Flag]) -> Iterator[Flag]:
    """What the store's master on the node of ``address`` is not told beside the flags that it is ``told``.

    Its parser also takes one dash for two, and a dash for each underscore: those spellings would be flags of their own.
    """
    hosts = [attrs.evolve(implied_flag(name, "0.0.0.0", option=FIXED), agreeing=(address,)) for name in _MASTER_HOSTS]
    yield from (*_MASTER, *hosts)
    for each in (*told, *_MASTER, *hosts):
        plain = each.name.lstrip("-")
        dashes = plain.replace("_", "-")
        for other in sorted({f"-{plain}", f"-{dashes}", f"--{dashes}"} - {each.name}):
            yield _never(other, f"it is {each.name}: write it so")
