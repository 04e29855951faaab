"""Public fault reports that a plan can prevent, each with the input of the report, planned for the engine it hit.

The numbers are those of the collection; what its parts do about them is tested beside those parts, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from disagg_run import (
    ArgText,
    LaunchPlan,
    Layer,
    NodeFacts,
    PlanError,
    PlannedProcess,
    PortError,
    RoleSpec,
    Source,
    TopologyError,
    plan,
)
from disagg_run.render import render_shell
from disagg_run.spec.reading import read_spec
from tests import atom_plans, sglang_plans, vllm_plans
from tests.plan_values import source, value

TYPED = Source(layer=Layer.COMMAND_LINE, where="--decode-args")


def blocks(process: PlannedProcess) -> dict[str, range]:
    """The ports of each listener of a process."""
    return {name: range(first, first + process.port_counts.get(name, 1)) for name, first in process.ports.items()}


def on_one_port(launch: LaunchPlan) -> list[tuple[str, str]]:
    """Listeners of one node that have a port in common."""
    clashes = []
    for rank in launch.ranks:
        owned = [(f"{each.name}/{name}", ports) for each in rank.processes() for name, ports in blocks(each).items()]
        for index, (mine, ports) in enumerate(owned):
            clashes += [(mine, theirs) for theirs, others in owned[:index] if set(ports) & set(others)]
    return clashes


def test_B01_two_prefill_workers_of_a_node_have_ports_of_their_own_and_are_told_them() -> None:
    launch = sglang_plans.planned(
        prefill=RoleSpec(workers=2, tp=4, dp_attention=True), decode=RoleSpec(tp=8, dp_attention=True)
    )
    first, second = launch.process("prefill-0"), launch.process("prefill-1")
    assert launch.ranks[0].processes()[:2] == (first, second)
    assert on_one_port(launch) == []
    for process in (first, second):
        assert value(process, "--port") == str(process.ports["http"])
        assert blocks(process)["dp"] == range(process.ports["http"] + 233, process.ports["http"] + 240)
    with pytest.raises(PortError, match=r"prefill-0 http .* prefill-1 http .*8000"):
        sglang_plans.planned(
            prefill=RoleSpec(workers=2, tp=4, dp_attention=True),
            decode=RoleSpec(tp=8, dp_attention=True),
            settings={"server_port": 8000},
            sources={"settings.server_port": TYPED},
        )


def test_B02_a_port_that_the_kernel_may_give_away_is_warned_of_and_one_in_use_is_not_taken() -> None:
    usual = sglang_plans.planned(prefill=RoleSpec(dp_attention=True), decode=RoleSpec(dp_attention=True))
    assert not [first for rank in usual.ranks for each in rank.processes() for first in each.ports.values()
                if 32768 <= first <= 60999]  # fmt: skip
    moved = sglang_plans.planned(
        prefill=RoleSpec(dp_attention=True), decode=RoleSpec(dp_attention=True), settings={"server_port": 39000}
    )
    texts = [warning.message for warning in moved.warnings]
    assert any("port 39000 (http of prefill-0" in text and "ephemeral range 32768-60999" in text for text in texts)
    assert any("39233" in text for text in texts)
    held = {0: NodeFacts(listening_ports=(8000,))}
    no_devices = ("ib-devices",)
    assert sglang_plans.planned(facts=held, waive=no_devices).process("prefill-0").ports["http"] != 8000
    with pytest.raises(PortError, match=r"prefill-0 http needs port 8000 on rank 0, but something already listens"):
        sglang_plans.planned(
            facts=held, waive=no_devices, settings={"server_port": 8000}, sources={"settings.server_port": TYPED}
        )


def test_B03_each_vllm_server_of_a_node_searches_ports_in_a_window_of_its_own() -> None:
    launch = vllm_plans.planned(
        nodes=None, gpus_per_node=4, prefill=RoleSpec(workers=4, tp=2), decode=RoleSpec(tp=4), pack=True
    )
    assert on_one_port(launch) == []
    for first, second in (("prefill-0", "prefill-1"), ("prefill-2", "prefill-3")):
        windows = [blocks(launch.process(name))["window"] for name in (first, second)]
        assert not set(windows[0]) & set(windows[1])
        for name, window in zip((first, second), windows, strict=True):
            assert launch.process(name).env["VLLM_PORT"] == str(window[0])


def test_B10_every_server_is_waited_for_at_its_own_address_and_its_own_roles_port() -> None:
    launch = atom_plans.planned(
        nodes=3, prefill=RoleSpec(workers=2), settings={"prefill_port": 8010, "decode_port": 8020}
    )
    waited = {name: [ready.target for ready in launch.process(name).ready] for name in launch.process_names()}
    nodes = [rank.node.address for rank in launch.ranks]
    assert waited["prefill-0"] == [f"http://{nodes[0]}:8010/health"]
    assert waited["prefill-1"] == [f"http://{nodes[1]}:8010/health"]
    assert waited["decode-0"] == [f"http://{nodes[2]}:8020/health"]
    gate = {edge.process: edge.until for edge in launch.process("router").after}
    assert gate == {"prefill-0": "ready", "prefill-1": "ready", "decode-0": "ready"}


def test_B33_what_is_asked_once_reaches_every_process_and_is_what_the_process_sees(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "engine: sglang-disagg\nmodel: DeepSeek-R1-0528\nnodes: [127.0.0.1, 127.0.0.2]\n"
        "prefill: {tp: 8, ep: true}\ndecode: {tp: 8, ep: true, dp-attention: true}\n"
        "env: {RUN_LABEL: 'a b'}\nrouter: {env: {RUN_LABEL: 'a b'}}\nbench: {request-rate: 1}\n"
    )
    spec = read_spec(options={}, recipe=recipe, environ={}, host=sglang_plans.HOST)
    assert (spec.bench.request_rate, str(spec.source("bench.request_rate"))) == ("1", "run file r.yaml:8")
    launch = plan(spec, host=sglang_plans.HOST)
    assert {each.env["RUN_LABEL"] for rank in launch.ranks for each in rank.processes()} == {"a b"}
    decode = launch.process("decode-0")
    assert (value(decode, "--tp-size"), value(decode, "--ep-size"), decode.gpus) == ("8", "8", tuple(range(8)))
    seen = start_by_script(launch, 1, program=decode.argv[0], folder=tmp_path)
    assert seen["argv"] == list(decode.argv[1:])
    assert {name: seen["env"].get(name) for name in decode.env} == dict(decode.env)


def start_by_script(launch: LaunchPlan, rank: int, *, program: str, folder: Path) -> dict[str, Any]:
    """Run a rank's shell script, with a program in place of the server's that notes what it is given."""
    noted, script = folder / "noted.json", folder / "rank.sh"
    stand_in = folder / program
    stand_in.write_text(
        f"#!{sys.executable} -S\nimport json, os, sys\n"
        f"json.dump({{'argv': sys.argv[1:], 'env': dict(os.environ)}}, open({str(noted)!r}, 'w'))\n"
    )
    stand_in.chmod(0o755)
    script.write_text(render_shell(launch, rank))
    environ = {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(script)], env=environ, stderr=subprocess.DEVNULL, timeout=60, check=False)
    found: dict[str, Any] = json.loads(noted.read_text())
    return found


def test_B41_an_override_of_some_flags_drops_none_of_the_launchers() -> None:
    usual = atom_plans.planned().process("decode-0")
    override = (ArgText(words=("--max-num-seqs", "8", "--enforce-eager"), source=TYPED),)
    launch = atom_plans.planned(decode=RoleSpec(args=override))
    changed = launch.process("decode-0")
    kept = {word for word in usual.argv if word.startswith("-")}
    assert kept <= set(changed.argv)
    assert value(changed, "--server-port") == value(usual, "--server-port") == "8020"
    assert value(changed, "--max-num-seqs") == "8"
    assert source(launch, "decode-0", "argv/--max-num-seqs") == "command line --decode-args"
    assert source(launch, "decode-0", "argv/--server-port") == "engine default (plugin atom-disagg)"
    with pytest.raises(PlanError, match=r"--server-port of decode-0 says '9000' \(command line --decode-args\)"):
        atom_plans.planned(decode=RoleSpec(args=[ArgText(words=("--server-port", "9000"), source=TYPED)]))


def test_B58_tensor_parallelism_over_nodes_is_refused_for_atom_with_the_largest_legal_size() -> None:
    with pytest.raises(TopologyError) as caught:
        atom_plans.planned(nodes=3, decode=RoleSpec(tp=16))
    assert str(caught.value) == (
        "a decode worker of 16 GPUs (tp 16) does not fit on one node of 8 GPUs, and atom-disagg cannot span nodes:"
        " the largest legal size of a decode worker is 8 GPUs"
    )


def test_B60_gpu_arithmetic_is_checked_against_what_is_given_and_what_nodes_have() -> None:
    with pytest.raises(TopologyError, match=r"need 5 nodes \(20 GPUs\), but 3 nodes are given \(12 GPUs at 4 a node"):
        vllm_plans.planned(nodes=3, gpus_per_node=4, prefill=RoleSpec(tp=8, dp=2), decode=RoleSpec(tp=4))
    four = {rank: NodeFacts(gpus=4) for rank in range(2)}
    with pytest.raises(TopologyError, match=r"which has 4 GPUs.*set GPUs per node to 4"):
        sglang_plans.planned(facts=four)
    launch = sglang_plans.planned(nodes=3, gpus_per_node=4, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=8))
    ranks = [launch.process(name) for name in ("decode-0", "decode-0.1")]
    assert [(value(each, "--nnodes"), value(each, "--node-rank")) for each in ranks] == [("2", "0"), ("2", "1")]
    assert {value(each, "--dist-init-addr").partition(":")[0] for each in ranks} == {"10.0.0.2"}


def test_B66_the_recipe_beats_every_default_and_two_that_differ_are_told(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("engine: sglang-disagg\nmodel: DeepSeek-R1-0528\nargs: --page-size 256\n")
    offloading = {"KV_OFFLOADING": "dram", "KV_OFFLOAD_BACKEND": "hicache", "xP": "2"}
    spec = read_spec(options={"prefill.workers": "1"}, recipe=recipe, environ=offloading, host=sglang_plans.HOST)
    launch = plan(spec, host=sglang_plans.HOST)
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--page-size") == "256"
        assert source(launch, name, "argv/--page-size") == "run file r.yaml:3"
    assert launch.sources is not None
    chains = [chain for key, chain in launch.sources.values.items() if key.endswith("argv/--page-size")]
    assert [[text for _, text in chain] for chain in chains] == [["256", "1"]] * 2
    recipe.write_text(recipe.read_text() + "prefill: {workers: 3}\n")
    both = plan(
        read_spec(options={}, recipe=recipe, environ=offloading, host=sglang_plans.HOST), host=sglang_plans.HOST
    )
    assert any("xP says '2': the run file holds" in warning.message for warning in both.warnings)
