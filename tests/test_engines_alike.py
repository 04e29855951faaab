"""What users may expect of every engine alike: models of a Hugging Face cache, IPv6 nodes, ports set by hand."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import (
    ArgText,
    LaunchPlan,
    LaunchSpec,
    Node,
    NodeFacts,
    PlannedProcess,
    PortError,
    ProcessSpec,
    RoleSpec,
    SpecError,
    build_host,
    plan,
)

HOST = build_host()
#: Engine: a model of its table, the flag of its server's HTTP port.
ENGINES = {
    "atom-disagg": ("DeepSeek-V4-Pro", "--server-port"),
    "sglang-disagg": ("DeepSeek-V4-Pro", "--port"),
    "vllm-disagg": ("Kimi-K2.5-MXFP4", "--port"),
}


def planned(engine: str, *, network: str = "10.0.0.{}", facts: NodeFacts | None = None, **fields: Any) -> LaunchPlan:
    """The plan of one prefill and one decode worker, each on a node of its own."""
    nodes = [Node(address=network.format(number)) for number in (1, 2)]
    spec = LaunchSpec(engine=engine, model=ENGINES[engine][0], nodes=nodes, **fields)
    return plan(spec, dict.fromkeys((0, 1), facts) if facts else None, host=HOST)


def value(process: PlannedProcess, flag: str) -> str:
    assert process.argv.count(flag) == 1, process.argv
    return process.argv[process.argv.index(flag) + 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_of_a_hugging_face_cache_is_served_from_the_snapshot_of_refs_main(engine: str) -> None:
    model, _ = ENGINES[engine]
    repository = f"/hub/models--org--{model}"
    facts = NodeFacts(links={repository: f"{repository}/snapshots/0123"})
    launch = planned(engine, facts=facts, model_dir="/hub", image="some/image:1", waive=["ib-devices"])
    for name, rank in (("prefill-0", 0), ("decode-0", 1)):
        process = launch.process(name)
        assert f"{repository}/snapshots/0123" in process.argv
        # One name for clients, whichever snapshot a node has.
        assert value(process, "--served-model-name") == launch.model.served_name
        assert process.ready[0].identity["served_model"] == launch.model.served_name
        group = next(group for group in launch.ranks[rank].groups if process in group.processes)
        assert [check.target for check in group.preflight if check.name == "model"] == [f"{repository}/snapshots/0123"]
        assert group.container is not None
        assert group.container.needs.mounts[0].source == repository


@pytest.mark.parametrize("engine", ENGINES)
def test_nodes_of_ipv6_are_served_and_reached_by_ipv6(engine: str) -> None:
    connector = "vllm-nixl" if engine == "vllm-disagg" else None  # its default one has no IPv6
    launch = planned(engine, network="fd00::{}", connector=connector)
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--host") == "::"
    router = launch.process("router")
    assert value(router, "--host") in ("::", "[::]")
    assert all(proof.target.startswith("http://[fd00::1]:") for proof in router.ready if proof.kind == "http")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["prefill-0", "router"])
def test_a_port_set_by_hand_beside_the_plan_s_is_refused(engine: str, name: str) -> None:
    flag = "--port" if name == "router" else ENGINES[engine][1]
    by_hand = ProcessSpec(args=[ArgText(words=(flag, "9999"))])
    with pytest.raises(PortError, match=f"{flag} of {name} says '9999'"):
        planned(engine, processes={name: by_hand})


@pytest.mark.parametrize(
    ("engine", "vendor", "shown"),
    [
        ("atom-disagg", "amd", "HIP"),
        ("sglang-disagg", "amd", "HIP"),
        ("sglang-disagg", "nvidia", "CUDA"),
        ("vllm-disagg", "amd", "HIP"),
        ("vllm-disagg", "nvidia", "CUDA"),
    ],
)
def test_workers_of_one_node_see_their_own_gpus(engine: str, vendor: Any, shown: str) -> None:
    role, facts = RoleSpec(tp=4), NodeFacts(gpu_vendor=vendor)
    waive = ["ib-devices", "gpu-vendor"]
    launch = planned(engine, facts=facts, prefill=role, decode=role, pack=True, waive=waive)
    for name, gpus in (("prefill-0", "0,1,2,3"), ("decode-0", "4,5,6,7")):
        env = launch.process(name).env
        assert {key: env[key] for key in env if key.endswith("_VISIBLE_DEVICES")} == {f"{shown}_VISIBLE_DEVICES": gpus}


@pytest.mark.parametrize(
    ("engine", "what", "instead"),
    [
        ("atom-disagg", "ATOM", "use another engine"),
        ("sglang-disagg", "sglang-mori", "use --connector sglang-mooncake"),
        ("vllm-disagg", "vllm-moriio", "use --connector vllm-nixl"),
    ],
)
def test_what_is_for_amd_gpus_is_refused_on_a_node_that_is_known_to_have_others(
    engine: str, what: str, instead: str
) -> None:
    facts = NodeFacts(gpu_vendor="nvidia")
    with pytest.raises(SpecError, match=rf"{what} is for AMD GPUs, but rank 0 .* has NVIDIA GPUs: {instead}"):
        planned(engine, facts=facts, waive=["ib-devices"])
    assert planned(engine, facts=facts, simulate=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_setting_of_a_port_takes_ports_alone(engine: str) -> None:
    connectors = [each for each in HOST.extensions().values() if each.kind == "connector" and engine in each.engines]
    settings = [each for owner in (HOST.engine(engine), *connectors) for each in owner.settings]
    ports = [each for each in settings if each.name.endswith("_port")]
    assert len(ports) >= 3
    assert {(each.type, each.minimum, each.maximum) for each in ports} == {("int", 1, 65535)}
