"""The run files of SGLang in ``examples/``: they plan without a remark, and as the public launchers ran their likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from disagg_run import LaunchPlan, plan
from disagg_run.spec.reading import read_spec
from tests.parity.case import load
from tests.sglang_plans import HOST

EXAMPLES = Path(__file__).parents[1] / "examples"
_PREFIX = "mi355x-sglang-disagg"

#: Run file -> the public case that it is, and variables of the case that are changed on purpose.
LIKES: dict[str, tuple[str, dict[str, str]]] = {
    f"dsr1-fp8-{_PREFIX}": ("dsr1_fp8_1p2d_tp8", {}),
    f"dsr1-fp8-{_PREFIX}-dep-mtp": ("dsr1_fp8_2p1d_dep8_mtp1", {}),
    f"dsr1-fp8-{_PREFIX}-wide-decode": ("dsr1_fp8_1k1k_1p_tp8_1d_dep16_2nodes", {}),
    f"dsr1-fp8-{_PREFIX}-mooncake": ("r1_kv_p2p_mooncake", {}),
    f"dsr1-fp8-{_PREFIX}-hicache": ("r1_hicache_dram_budget", {}),
    f"dsr1-fp8-{_PREFIX}-hicache-store": ("r1_hicache_mooncake_defaults", {"MC_MASTER_PORT": "20061"}),
    f"dsr1-fp8-{_PREFIX}-eval": ("r1_dep8_eval_only", {}),
    # Fault R32: the router has no consistent_hashing.
    f"dsv4-fp4-{_PREFIX}-agentic": ("dsv4_agentx_hicache_tp8_mtp3", {"PREFILL_ROUTER_POLICY": "cache_aware"}),
}


def planned(name: str, **options: str) -> LaunchPlan:
    recipe = EXAMPLES / f"{name}.yaml"
    return plan(read_spec(options=options, recipe=recipe, environ={}, host=HOST), host=HOST)


def test_every_run_file_is_compared() -> None:
    assert {path.stem for path in EXAMPLES.glob("*sglang*.yaml")} == set(LIKES)


@pytest.mark.parametrize("name", LIKES)
def test_a_run_file_plans_without_a_remark(name: str) -> None:
    assert planned(name).warnings == ()
    assert f"examples/{name}.yaml" in (EXAMPLES / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", LIKES)
def test_a_run_file_gives_the_same_processes_as_the_job_script(name: str) -> None:
    case_name, changes = LIKES[name]
    case = load(f"sglang/{case_name}")
    devices = case.environ["IBDEVICES"]
    asked = read_spec(
        options={"nodes": case.environ["IPADDRS"], "ib_devices": devices, "engine_version": "0.5.12"},
        recipe=EXAMPLES / f"{name}.yaml",
        environ={},
        host=HOST,
    )
    ours, theirs = plan(asked, case.facts(), host=HOST), case.plan(changes)
    assert ours.process_names() == theirs.process_names()
    for process_name in ours.process_names():
        mine, other = ours.process(process_name), theirs.process(process_name)
        assert (mine.argv, mine.env_prepend, mine.ports) == (other.argv, other.env_prepend, other.ports)
        # The traffic class is the cluster's, which its job scripts export.
        assert dict(mine.env) == {key: text for key, text in other.env.items() if key != "MORI_RDMA_TC"}
