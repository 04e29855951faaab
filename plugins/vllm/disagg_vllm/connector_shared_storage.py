"""KV transfer by files: ``vllm-shared-storage``, vLLM's ExampleConnector over a directory that all servers share.

For functional tests on any machine, processors included: nothing beside vLLM is needed, and nothing is fast. From its
sources (0.32.0; the name is that of every release from 0.14): prefill writes the KV of a prompt's whole blocks, one
file a layer, into a directory named by a hash of the token ids; decode reads what is there. So

- neither the model nor its weights are in the name: what an earlier run left would be taken for this one's, and is
  removed before servers start;
- tensor-parallel ranks would write one file: refused;
- a file is not written in one step: prompts that begin alike, at the same time on several prefill servers, can end one;
- blocks that a server still has are not looked for outside, and counting both goes wrong: prefix caching is off.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from disagg_run.addresses import is_loopback
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension, SharedValue
from disagg_run.errors import SpecError, TopologyError
from disagg_run.hookspecs import hookimpl
from disagg_run.records import FIXED, Command, ContainerNeeds, Flag, Mount, ServiceProcess, Simulation, flag
from disagg_run.sources import Source
from disagg_vllm import models, parallel, rdma, router, settings
from disagg_vllm.transfer import CONFIG, EXTRA, config_flag, refused_flags

NAME = "vllm-shared-storage"

DIRECTORY = "/tmp/disagg-run-kv"
_KEY = "shared_storage_path"

SETUP = "kv-directory"
#: Removes what the connector makes, directories named by a hash, and nothing else.
_EMPTY = """
import os, re, shutil, sys
place = sys.argv[1]
os.makedirs(place, exist_ok=True)
for name in os.listdir(place):
    if re.fullmatch("[0-9a-f]{32,128}", name):
        shutil.rmtree(os.path.join(place, name))
""".strip()

PARITY = (
    parallel.shared_context_parallel(),
    SharedValue(
        name="shared-storage-path",
        flag=CONFIG,
        key=(EXTRA, _KEY),
        why="decode would look where prefill writes nothing",
    ),
)


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name=NAME,
        summary="KV transfer between vLLM servers by files in a shared directory, for functional tests",
        kind="connector",
        engines=("vllm-disagg",),
        settings=settings.SHARED_STORAGE,
        parity=PARITY,
    )


@hookimpl
def disagg_services(ctx: RankContext) -> Iterable[ServiceProcess]:
    return [empty_directory(ctx)] if ctx.rank == 0 else ()


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    if ctx.process.kind == "router":
        return router.told_workers(ctx)
    check(ctx)
    refused = refused_flags(ctx, until="0.32")
    return [transfer_config(ctx), flag("--no-enable-prefix-caching", option=FIXED), *refused]


@hookimpl
def disagg_container(ctx: RankContext) -> Iterable[ContainerNeeds]:
    place, _ = directory(ctx)
    return [ContainerNeeds(mounts=[Mount(source=place, target=place, read_only=False)])]


@hookimpl
def disagg_simulation(ctx: ProcessContext) -> Iterable[Simulation]:
    # Stand-ins leave no KV, and somebody's real run may use the directory.
    return [Simulation(program=("true",), stand_in=False)] if ctx.process.name == SETUP else ()


def directory(ctx: RankContext) -> tuple[str, Source]:
    """The directory that holds KV, and who chose it."""
    return str(ctx.setting(_KEY, DIRECTORY)), rdma.chosen(ctx, _KEY, NAME)


def empty_directory(ctx: RankContext) -> ServiceProcess:
    """The setup of rank 0: no request comes before its servers are ready, so one rank is enough."""
    place, _ = directory(ctx)
    return ServiceProcess(name=SETUP, kind="setup", command=Command(program=("python3", "-c", _EMPTY, place)))


def transfer_config(ctx: ProcessContext) -> Flag:
    """The connector's JSON."""
    place, source = directory(ctx)
    path = f"{EXTRA}.{_KEY}"
    config = config_flag(
        ctx,
        NAME,
        "ExampleConnector",
        {EXTRA: {_KEY: place}},
        sources={path: source},
        held={path: f"settings.{_KEY}"},
    )
    return attrs.evolve(config, leaf_agreeing={"kv_role": ("kv_both",)})


def check(ctx: ProcessContext) -> None:
    """Refuse what would give wrong answers or none.

    Raises TopologyError for tensor parallelism, and SpecError for several nodes without a directory that is theirs.
    """
    size = parallel.sizes(ctx.role_spec)
    if size.tp > 1 and not models.body(ctx).mla:
        raise TopologyError(
            f"{ctx.process.role} has tensor-parallel size {size.tp}, but {NAME} writes the KV of all ranks to one file",
            remedy=f"use --{ctx.process.role}-tp 1, or another connector",
        )
    addresses = {head.address for head in ctx.heads}
    if len(addresses) > 1 and ctx.spec.nodes and not all(map(is_loopback, addresses)) and not ctx.setting(_KEY):
        raise SpecError(
            f"the servers are on {len(addresses)} nodes, and {NAME} needs a directory that all of them share",
            remedy=f"name it with --set {_KEY}=DIR",
        )
