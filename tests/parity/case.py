"""Parity cases: what a public set of bash launchers runs for one input, and our plan for the same input.

``data/<engine>/<case>.json`` are trimmed copies of a measured corpus: the input (environment of every rank, answers of
the node's tools), and for each rank the commands that were started, with argv and environment.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from disagg_run import Host, LaunchPlan, Nic, NodeFacts, build_host, plan
from disagg_run.spec.reading import read_spec

DATA = Path(__file__).parent / "data"


@attrs.frozen(kw_only=True)
class Tested:
    """An engine of the corpus and the version of it that the launchers were written for."""

    plugin: str
    version: str


#: By folder of ``data``. The versions are those of the catalogues that the launchers' flags were read against.
ENGINES: Mapping[str, Tested] = {
    "atom": Tested(plugin="atom-disagg", version="2026.8.22"),
    "sglang": Tested(plugin="sglang-disagg", version="0.5.12"),
    "vllm": Tested(plugin="vllm-disagg", version="0.32.0"),
}

#: Engines whose cases are run; the others' data lie ready.
COMPARED = ("atom", "sglang", "vllm")


@attrs.frozen(kw_only=True)
class Case:
    """One case of the corpus."""

    #: ``atom/dsv4_1p1d_tp8``.
    name: str
    data: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def engine(self) -> Tested:
        """The engine that it is for."""
        return ENGINES[self.name.partition("/")[0]]

    @property
    def environ(self) -> dict[str, str]:
        """What every rank's launcher inherited, without ``NODE_RANK``."""
        return {**self.data["input"]["implicit_env"], **self.data["input"]["env"]}

    def facts(self) -> dict[int, NodeFacts]:
        """What the case's nodes answered about themselves."""
        sandbox = self.data["input"]["sandbox"]
        return {node["rank"]: self._node_facts(sandbox, node) for node in sandbox["nodes"]}

    def _node_facts(self, sandbox: Mapping[str, Any], node: Mapping[str, Any]) -> NodeFacts:
        interface = sandbox["default_iface"]
        addresses = {interface: (node["ip"],)}
        devices = [name for name in sandbox["ibdevs"].split(",") if name]
        nics = [Nic(name=name, driver=name.partition("_")[0], state="ACTIVE") for name in devices]
        if "rdma_ip" in node:
            # The launchers knew this interface by its name; the device behind it is the first of the list.
            addresses["benic1p1"] = (node["rdma_ip"],)
            first, *others = self.environ["IBDEVICES"].split(",")
            nics = [Nic(name=first, state="ACTIVE", netdev="benic1p1", addresses=(node["rdma_ip"],))]
            nics += [Nic(name=name, state="ACTIVE") for name in others]
        return NodeFacts(
            hostname=node["hostname"],
            addresses=addresses,
            default_interface=interface,
            gpus=int(self.environ.get("GPUS_PER_NODE", "8")),
            gpu_vendor="amd",
            nics=tuple(nics),
        )

    def plan(self, changes: Mapping[str, str] | None = None) -> LaunchPlan:
        """Our plan for the case's environment, with some variables ``changes``-d."""
        spec = read_spec(
            options={"engine_version": self.engine.version},
            recipe=None,
            environ={**self.environ, **(changes or {})},
            host=host(),
        )
        return plan(spec, self.facts(), host=host())


@functools.cache
def host() -> Host:
    return build_host()


def names(*engines: str) -> list[str]:
    """The names of all cases of some engines, sorted."""
    return [f"{engine}/{path.stem}" for engine in engines for path in sorted((DATA / engine).glob("*.json"))]


@functools.cache
def load(name: str) -> Case:
    """One case by name."""
    return Case(name=name, data=json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")))
