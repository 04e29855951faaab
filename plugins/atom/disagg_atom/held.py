"""What ATOM and atomesh need not be told, and by hand may only be told as planned.

Left free on purpose: ``ATOM_DP_MASTER_PORT`` of a server without DP ranks, which nothing opens, ``proxy_ping_port`` of
the connector, which nothing reads, and the host of the router's metrics.
"""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext
from disagg_run.option_flags import PLAIN_HTTP, held_variable, implied_flag, never_flag
from disagg_run.records import FIXED, EnvSetting, Flag
from disagg_run.roles import dp_ranks

# Built once, for plans of a thousand nodes.
_PCP = implied_flag("--prefill-context-parallel-size", 1, option=FIXED, why="it would multiply the GPUs of a worker")
#: The server's own default of a port that it never binds (facts of ATOM ffdf3bb5).
_UNBOUND_PORT = 8006

#: Of the router.
ROUTER = (
    never_flag("--worker-urls", "a worker is prefill or decode"),
    never_flag("--tls-cert-path", PLAIN_HTTP),
    never_flag("--tls-key-path", PLAIN_HTTP),
    never_flag("--api-key", "probes bring no key, and it would stand in the plan"),
)

_OWN_RANKS = "the engine numbers its GPU processes itself"
_RANKS = tuple(
    held_variable(name, why=_OWN_RANKS) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
)
_DP = {"ATOM_DP_SIZE": "1", "ATOM_DP_RANK": "0", "ATOM_DP_RANK_LOCAL": "0"}
_ONE_RANK = tuple(held_variable(name, value, why=_OWN_RANKS) for name, value in _DP.items())
_SEVERAL_RANKS = tuple(held_variable(name, why=_OWN_RANKS) for name in _DP)
_MASTER_IP = held_variable("ATOM_DP_MASTER_IP", "127.0.0.1", why="a worker is on one node")
_NO_BASE_PORT = held_variable(
    "ATOM_DP_BASE_PORT", option="settings.dp_base_port", why="the engine takes a free port, and nobody is told of it"
)


def server_flags(ctx: ProcessContext) -> Iterator[Flag]:
    """What the command of a server is held to, beside what it says."""
    yield _PCP
    why = "nothing listens there: --server-port is the HTTP port"
    yield implied_flag("--port", _UNBOUND_PORT, option=FIXED, why=why, agreeing=(str(ctx.ports["http"]),))


def variables(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """What the environment of a server is held to, beside what it has."""
    yield from _RANKS
    yield from _ONE_RANK if dp_ranks(ctx.role_spec) == 1 else _SEVERAL_RANKS
    yield _MASTER_IP
    if "dp_base" not in ctx.ports:
        yield _NO_BASE_PORT
