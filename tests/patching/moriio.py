"""Plans of the vLLM plugin with its patches, and what each patch must be on each release."""

from __future__ import annotations

import json
from typing import Any

from disagg_run import LaunchPlan, LaunchSpec, build_host, plan
from disagg_vllm import connector_moriio, connector_nixl, patches_moriio, plugin
from disagg_vllm.patches_moriio import asked_for
from tests.real.vllm_sources import VLLM_RELEASES

MORIIO = asked_for(["moriio"])
#: Releases in which all of them are patches.
PATCHED = VLLM_RELEASES[: VLLM_RELEASES.index("0.23.0")]
EXPECTED = {
    **{version: dict.fromkeys((patch.id for patch in MORIIO), "applied") for version in PATCHED},
    **{
        version: {
            **dict.fromkeys((patch.id for patch in MORIIO), "setting instead"),
            "scheduler-read-mode-fix": "applied" if version in ("0.23.0", "0.27.1") else "not needed",
        }
        for version in VLLM_RELEASES
        if version not in PATCHED
    },
}


def planned(version: str, *names: str, connector: str = "vllm-moriio", **fields: Any) -> LaunchPlan:
    """A plan for one vLLM release with patches."""
    plugins = [plugin, connector_moriio, connector_nixl, patches_moriio]
    spec = LaunchSpec(
        engine="vllm-disagg",
        model="MiniMax-M2.5",
        connector=connector,
        engine_version=version,
        patches=names,
        **fields,
    )
    return plan(spec, host=build_host(plugins=plugins, disabled=(), entry_points=False))


def bounds(launch: LaunchPlan, process: str) -> tuple[dict[str, str], dict[str, object]]:
    """The bounds of a process: as variables of patched code, and as settings of its connector."""
    found = launch.process(process)
    config = json.loads(found.argv[found.argv.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    return (
        {name: value for name, value in found.env.items() if name.startswith("DISAGG_")},
        {name: value for name, value in config.items() if name.endswith("_timeout")},
    )
