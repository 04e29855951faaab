"""Launch prefill/decode-disaggregated LLM serving over several nodes from one plan per rank.

    import disagg_run

    spec = disagg_run.LaunchSpec(engine="toy-disagg", model="toy", prefill=disagg_run.RoleSpec(workers=2))
    plan = disagg_run.plan(spec)
    print(plan.to_json())

The names below are the public ones; each is imported when it is first used, so that a command that needs few of them
starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disagg_run.context import Head, Process, ProcessContext, RankContext
    from disagg_run.declarations import (
        CatalogueRef,
        Combination,
        Engine,
        Extension,
        GoneFlag,
        ModelRow,
        Setting,
        SharedValue,
    )
    from disagg_run.errors import (
        ConflictError,
        DisaggError,
        FlagError,
        ParityError,
        PatchError,
        PlanError,
        PluginError,
        PortError,
        RunError,
        SpecError,
        TopologyError,
        UsageError,
    )
    from disagg_run.facts import Nic, NodeFacts
    from disagg_run.hookspecs import hookimpl
    from disagg_run.host import Host, build_host
    from disagg_run.planning.document import Group, LaunchPlan, PlannedProcess, RankPlan
    from disagg_run.planning.planner import plan
    from disagg_run.records import (
        Command,
        ContainerNeeds,
        Edit,
        EnvSetting,
        FileDigest,
        Flag,
        Listener,
        Mount,
        Patch,
        Preflight,
        Probe,
        ServiceProcess,
        Simulation,
        Workload,
        flag,
    )
    from disagg_run.running.launch import LaunchOptions, run
    from disagg_run.sources import Layer, Source
    from disagg_run.spec.model import ArgText, BenchSpec, LaunchSpec, Node, ProcessSpec, RoleSpec, RouterSpec

_WHERE = {
    "context": "Head Process ProcessContext RankContext",
    "declarations": "CatalogueRef Combination Engine Extension GoneFlag ModelRow Setting SharedValue",
    "errors": "ConflictError DisaggError FlagError ParityError PatchError PlanError PluginError PortError RunError"
    " SpecError TopologyError UsageError",
    "facts": "Nic NodeFacts",
    "hookspecs": "hookimpl",
    "host": "Host build_host",
    "planning.document": "Group LaunchPlan PlannedProcess RankPlan",
    "planning.planner": "plan",
    "records": "Command ContainerNeeds Edit EnvSetting FileDigest Flag Listener Mount Patch Preflight Probe"
    " ServiceProcess Simulation Workload flag",
    "running.launch": "LaunchOptions run",
    "sources": "Layer Source",
    "spec.model": "ArgText BenchSpec LaunchSpec Node ProcessSpec RoleSpec RouterSpec",
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names.split()}

__version__ = "0.1.0"

__all__ = [
    "ArgText",
    "BenchSpec",
    "CatalogueRef",
    "Combination",
    "Command",
    "ConflictError",
    "ContainerNeeds",
    "DisaggError",
    "Edit",
    "Engine",
    "EnvSetting",
    "Extension",
    "FileDigest",
    "Flag",
    "FlagError",
    "GoneFlag",
    "Group",
    "Head",
    "Host",
    "LaunchOptions",
    "LaunchPlan",
    "LaunchSpec",
    "Layer",
    "Listener",
    "ModelRow",
    "Mount",
    "Nic",
    "Node",
    "NodeFacts",
    "ParityError",
    "Patch",
    "PatchError",
    "PlanError",
    "PlannedProcess",
    "PluginError",
    "PortError",
    "Preflight",
    "Probe",
    "Process",
    "ProcessContext",
    "ProcessSpec",
    "RankContext",
    "RankPlan",
    "RoleSpec",
    "RouterSpec",
    "RunError",
    "ServiceProcess",
    "Setting",
    "SharedValue",
    "Simulation",
    "Source",
    "SpecError",
    "TopologyError",
    "UsageError",
    "Workload",
    "build_host",
    "flag",
    "hookimpl",
    "plan",
    "run",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
