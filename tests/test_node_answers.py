"""RDMA devices, GPUs, the model on a node, and ports that a user may fix, as plugins of any engine ask for them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disagg_run import (
    Engine,
    EnvSetting,
    Head,
    LaunchSpec,
    Layer,
    ModelRow,
    Nic,
    Node,
    NodeFacts,
    Process,
    ProcessContext,
    RoleSpec,
    RouterSpec,
    Source,
    SpecError,
    rdma,
)
from disagg_run.context import any_address
from disagg_run.gpus import known_vendor, visible_gpus
from disagg_run.model_files import located, located_by
from disagg_run.releases import at_least
from disagg_run.roles import ModeName, attention_tp, dp_ranks, mode_name, speculative_tokens
from disagg_run.settable_ports import port_source, router_http, settable

OWN = Source(layer=Layer.CONNECTOR, plugin="toy-link")
ENGINE = Engine(
    name="toy-disagg", summary="", models=(), versions=">=1", default_version="1.0", default_connector="toy-link"
)
TWELVE = [Nic(name=f"mlx5_{number}", state="ACTIVE") for number in range(12)]


def context(facts: NodeFacts | None = None, **fields: Any) -> ProcessContext:
    """The context of a prefill server; ``fields`` are its own (``servers``), ``gpus``, or of the spec."""
    own = {field.name for field in attrs.fields(ProcessContext)}
    asked = {key: value for key, value in fields.items() if key not in own | {"gpus"}}
    node = Node(name="n1", address="10.0.0.1")
    made: dict[str, Any] = {
        "spec": LaunchSpec(engine="toy-disagg", model="toy", **asked),
        "engine": ENGINE,
        "model": ModelRow(name="toy"),
        "model_path": "/models/toy",
        "engine_version": "1.0",
        "connector": "toy-link",
        "rank": 0,
        "node": node,
        "first_node": node,
        "facts": facts,
        "heads": (),
        "servers": ("prefill-0",),
        "process": Process(name="prefill-0", kind="server", role="prefill", gpus=fields.get("gpus", range(8))),
    }
    return ProcessContext(**made | {key: value for key, value in fields.items() if key in own})


# --- devices -----------------------------------------------------------------------------------------------------


def test_devices_are_those_that_were_named_else_all_that_may_be_up() -> None:
    nics = [Nic(name="a", state="ACTIVE"), Nic(name="b", state="DOWN"), Nic(name="c")]
    names, source = rdma.devices(context(NodeFacts(nics=nics)), OWN)
    assert names == ("a", "c")
    assert str(source) == "connector (plugin toy-link): the devices that are up on this node"
    named, by = rdma.devices(context(NodeFacts(nics=nics), ib_devices=["b"]), OWN)
    assert (named, by.layer) == (("b",), Layer.PROGRAM)
    assert rdma.devices(context(), OWN)[0] == ()


@pytest.mark.parametrize(
    ("nics", "named", "message"),
    [
        ([], [], r"rank 0 \(n1\) has no RDMA device that is up \(it has none at all\), and none is named"),
        ([Nic(name="a", state="DOWN")], [], r"\(a is DOWN\)"),
        (TWELVE, ["mlx5_13"], r"device 'mlx5_13' .* is not on rank 0 \(n1\): did you mean 'mlx5_"),
        ([Nic(name="a", state="DOWN")], ["a"], r"device 'a' .* is DOWN on rank 0 .*: it has a; go on .*--waive ib-dev"),
    ],
)
def test_a_node_that_is_known_to_lack_its_devices_is_refused(nics: list[Nic], named: list[str], message: str) -> None:
    facts = NodeFacts(nics=nics)
    with pytest.raises(SpecError, match=message):
        rdma.check_devices(context(facts, ib_devices=named))
    rdma.check_devices(context(facts, ib_devices=named, waive=[rdma.DEVICE_CHECK]))
    rdma.check_devices(context(facts, ib_devices=named, simulate=True))
    rdma.check_devices(context(None, ib_devices=named))


def test_devices_that_a_node_does_not_show_may_be_there() -> None:
    rdma.check_devices(context(NodeFacts(), ib_devices=["rdma0"]))
    assert rdma.known_nics(context(NodeFacts(nics=TWELVE)), ("mlx5_1", "rdma0")) == ()


def test_peers_reach_kv_at_the_address_behind_the_device_ipv4_first() -> None:
    facts = NodeFacts(nics=[Nic(name="a", netdev="eth1", addresses=["fd00::1", "10.1.0.1"]), Nic(name="b")])
    assert rdma.data_address(context(facts), "a") == ("10.1.0.1", "address of eth1 behind a")
    for device in ("b", "c", None):
        assert rdma.data_address(context(facts), device) == ("10.0.0.1", "the node's address")


def test_a_name_that_others_begin_with_is_marked_exact_for_collectives() -> None:
    assert rdma.collective_devices(context(NodeFacts(nics=TWELVE)), ("mlx5_1", "mlx5_2")) == "=mlx5_1,mlx5_2"
    assert rdma.collective_devices(context(NodeFacts(nics=TWELVE[:3])), ("mlx5_1", "mlx5_2")) == "mlx5_1,mlx5_2"
    everything = tuple(nic.name for nic in TWELVE)
    assert rdma.collective_devices(context(NodeFacts(nics=TWELVE)), everything) == ",".join(everything)


def test_of_two_indexes_of_one_gid_the_later_is_of_roce_v2() -> None:
    mlx5 = Nic(name="a", gids={0: "fe80::1", 1: "fe80::1", 2: "::ffff:10.0.0.1", 3: "::ffff:10.0.0.1"})
    assert mlx5.routable_gids == {3}
    assert Nic(name="b", gids={0: "fe80::1", 1: "fd00::1", 2: "fd00::2"}).routable_gids == {1, 2}


# --- GPUs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vendor", "shown", "hidden"), [("amd", "HIP", "CUDA"), ("nvidia", "CUDA", "HIP")])
def test_a_server_that_shares_its_node_sees_its_own_gpus_by_one_variable(vendor: Any, shown: str, hidden: str) -> None:
    settings = list(visible_gpus(context(gpus=(4, 5)), vendor))
    assert [each for each in settings if each.op == "set"] == [EnvSetting(f"{shown}_VISIBLE_DEVICES", "4,5")]
    unset = {each.name for each in settings if each.op == "unset"}
    assert unset == {f"{hidden}_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
    shared = context(gpus=(0, 1), servers=("prefill-0", "decode-0"))
    assert [each.value for each in visible_gpus(shared, vendor) if each.op == "set"] == ["0,1"]
    assert not list(visible_gpus(context(), vendor))
    assert all(each.implied for each in visible_gpus(context(gpus=(4, 5)), "cpu"))


def test_who_made_the_gpus_is_what_the_node_says() -> None:
    assert known_vendor(context(NodeFacts(gpu_vendor="nvidia")), "amd") == "nvidia"
    assert known_vendor(context(NodeFacts()), "amd") == known_vendor(context(), "amd") == "amd"


# --- the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["0123", "/hub/models--org--toy/snapshots/0123"])
def test_a_model_of_a_hugging_face_cache_lies_in_the_snapshot_that_refs_main_names(target: str) -> None:
    facts = NodeFacts(links={"/hub/models--org--toy": target, "/hub/models--org--other": "4567"})
    beside = context(facts, model_dir="/hub", model_path="/hub/toy")
    assert located(beside) == (
        "/hub/models--org--toy/snapshots/0123",
        "snapshot that refs/main of /hub/models--org--toy names",
    )
    assert "refs/main of /hub/models--org--toy" in str(located_by(beside))
    assert located(context(None, model_path="/hub/toy")) == ("/hub/toy", "")
    assert str(located_by(context(model_path="/hub/toy"))).endswith("model_dir of toy")


# --- ports -------------------------------------------------------------------------------------------------------


def test_a_port_that_a_setting_fixes_stays_and_another_says_why_it_moved() -> None:
    free = settable(context(), "http", "server_port", 8000, flag="--port")
    assert (free.default_port, free.pinned, free.source, free.flag) == (8000, False, None, "--port")
    asked = context(settings={"server_port": 9000})
    fixed = settable(asked, "http", "server_port", 8000)
    assert (fixed.default_port, fixed.pinned, fixed.source) == (9000, True, asked.source("server_port"))
    assert port_source(asked, "http", "server_port", 8000) == asked.source("server_port")
    assert port_source(context(ports={"http": 8000}), "http", "server_port", 8000) is None
    moved = port_source(context(ports={"http": 8001}), "http", "server_port", 8000)
    assert str(moved) == "engine default (plugin toy-disagg): 8000 is taken on this node"


def test_the_router_s_port_is_the_option_s_or_the_plugin_s() -> None:
    assert (router_http(context(), 30000).default_port, router_http(context(), 30000).pinned) == (30000, False)
    fixed = router_http(context(router=RouterSpec(port=31000)), 30000)
    assert (fixed.name, fixed.default_port, fixed.pinned) == ("http", 31000, True)
    assert fixed.source is not None


def test_addresses_of_ipv6_are_in_brackets_where_a_port_follows() -> None:
    head = Head(name="prefill-0", role="prefill", worker=0, rank=0, address="fd00::1", ports={"http": 8000})
    assert head.url == "http://[fd00::1]:8000"
    assert (any_address("fd00::1"), any_address("10.0.0.1")) == ("::", "0.0.0.0")


# --- roles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "mode", "ranks", "split"),
    [
        (RoleSpec(tp=8), "plain", 1, 8),
        (RoleSpec(tp=4, dp=2), "plain", 2, 4),
        (RoleSpec(tp=8, expert_parallel=True), "expert_parallel", 1, 8),
        (RoleSpec(tp=8, dp_attention=True), "dp_attention", 8, 1),
        (RoleSpec(tp=16, dp_attention=True, expert_parallel=True), "dp_attention_expert_parallel", 16, 1),
    ],
)
def test_dp_attention_makes_every_gpu_a_rank_with_requests_of_its_own(
    role: RoleSpec, mode: ModeName, ranks: int, split: int
) -> None:
    assert (mode_name(role), dp_ranks(role), attention_tp(role)) == (mode, ranks, split)


def test_a_role_that_says_nothing_of_speculation_speculates_like_the_other() -> None:
    ctx = context(decode=RoleSpec(mtp=3))
    assert speculative_tokens(ctx, "decode")[0] == speculative_tokens(ctx, "prefill")[0] == 3
    assert "speculate alike" in str(speculative_tokens(ctx, "prefill")[1])
    both = context(prefill=RoleSpec(mtp=1), decode=RoleSpec(mtp=3))
    assert [speculative_tokens(both, role)[0] for role in ("prefill", "decode")] == [1, 3]
    assert speculative_tokens(context(), "decode")[0] == 0


def test_a_pre_release_or_build_counts_as_its_release() -> None:
    for version in ("0.5.14", "0.5.14rc1", "0.5.14.post1+rocm700", "0.5.15", "0.6"):
        assert at_least(version, "0.5.14")
    assert not at_least("0.5.13.post1", "0.5.14")
