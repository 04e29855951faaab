"""``disagg-run facts``: what this node has, as a plan can use it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from disagg_run.cli.output import emit
from disagg_run.plain_text import columns

if TYPE_CHECKING:
    from disagg_run.facts import NodeFacts


@click.command("facts")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", help="default: table")
@click.option("--engine", metavar="NAME", help="engine whose installed version is wanted")
@click.option("--model", "models", multiple=True, metavar="DIR", help="model directory whose snapshot is wanted")
@click.option("--address", "only_address", is_flag=True, help="print only the address that other nodes should use")
@click.option("--interface", metavar="NAME", help="network device of that address; default: as the route to the peers")
@click.option("--peer", "peers", multiple=True, metavar="ADDRESS", help="a node that must be reached from it")
def command(
    form: str,
    engine: str | None,
    models: tuple[str, ...],
    only_address: bool,
    interface: str | None,
    peers: tuple[str, ...],
) -> None:
    """Say what this node has: addresses, RDMA devices, GPUs, ports in use, container tool.

    The JSON form is what `plan --facts FILE` takes: facts by host name. Documents of several nodes become one by
    `jq -s add`, or are given each with a --facts of its own. What a node cannot see is written into it by hand: the
    `network` of an RDMA device, by any name; devices of different names have no route to each other.
    """
    from disagg_run.facts_document import facts_to_json
    from disagg_run.running.nodefacts import gather
    from disagg_run.running.own_address import own_address

    found = gather(models=models, distributions=_distributions(engine))
    if only_address:
        chosen = own_address(found, interface=interface, peers=peers)
        emit(_address_json(chosen.address, chosen.rule) if form == "json" else f"{chosen.address}\n")
    elif form == "json":
        emit(facts_to_json({found.hostname: found}))
    else:
        emit(_table(found, interface, peers))


def _distributions(engine: str | None) -> tuple[str, ...]:
    if engine is None:
        return ()
    from disagg_run.host import build_host

    return build_host().engine(engine).distributions


def _address_json(address: str, rule: str) -> str:
    return json.dumps({"address": address, "rule": rule}, ensure_ascii=False) + "\n"


def _table(facts: NodeFacts, interface: str | None, peers: tuple[str, ...]) -> str:
    from disagg_run.errors import SpecError
    from disagg_run.running.own_address import own_address

    try:
        chosen = own_address(facts, interface=interface, peers=peers)
        address = f"{chosen.address} ({chosen.rule})"
    except SpecError as error:
        if interface is not None:
            raise
        address = f"none chosen: {error}"
    memory = "unknown" if facts.memory_bytes is None else f"{facts.memory_bytes / 2**30:.1f} GiB"
    rows = [
        ("host", facts.hostname),
        ("address", address),
        *(("interface", f"{name}  {' '.join(each)}") for name, each in facts.addresses.items()),
        ("GPUs", "unknown" if facts.gpus is None else f"{facts.gpus} {facts.gpu_vendor}".rstrip()),
        *(("RDMA device", _nic(facts, index)) for index in range(len(facts.nics))),
        ("memory", memory),
        ("container tool", facts.container_tool or "none found"),
        ("ephemeral ports", f"{facts.ephemeral_ports[0]}-{facts.ephemeral_ports[1]}"),
        ("ports in use", " ".join(map(str, facts.listening_ports)) or "none"),
    ]
    if facts.engine_version:
        rows.append(("engine version", facts.engine_version))
    rows += [("snapshot", f"{model} -> {target}") for model, target in facts.links.items()]
    return columns(rows)


def _nic(facts: NodeFacts, index: int) -> str:
    nic = facts.nics[index]
    behind = f"{nic.netdev} {' '.join(nic.addresses)}".strip()
    parts = [nic.name, nic.state or "state unknown", nic.driver or "driver unknown", behind, f"{len(nic.gids)} GIDs"]
    parts += [f"near GPUs {' '.join(map(str, nic.gpus))}" if nic.gpus else ""]
    return "  ".join(part for part in parts if part)
