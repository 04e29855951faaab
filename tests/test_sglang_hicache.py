"""HiCache: host memory of prefill by ratio or budget, one page size, and the Mooncake store as a service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from disagg_run import LaunchPlan, NodeFacts, ParityError, RoleSpec, SpecError
from tests.sglang_plans import contract, planned, source, value

ON = {"KV_OFFLOADING": "dram", "KV_OFFLOAD_BACKEND": "hicache"}
STORE = {**ON, "HICACHE_STORAGE_BACKEND": "mooncake"}


def store_config(launch: LaunchPlan, process: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value(launch.process(process), "--hicache-storage-backend-extra-config"))
    return found


def test_offloading_is_prefills_and_keeps_its_prefix_cache() -> None:
    launch = contract(**ON)
    assert "--enable-hierarchical-cache" in launch.process("prefill-0").argv
    assert "--disable-radix-cache" not in launch.process("prefill-0").argv
    assert not [word for word in launch.process("decode-0").argv if "hicache" in word or "hierarchical" in word]
    assert "--enable-hierarchical-cache" not in contract(KV_OFFLOADING="none").process("prefill-0").argv


def test_R8_the_page_size_stands_once_and_is_the_models() -> None:
    for model, size in (("DeepSeek-V4-Pro", "256"), ("DeepSeek-R1-0528", "1")):
        launch = contract(MODEL_NAME=model, **ON)
        assert (
            value(launch.process("prefill-0"), "--page-size")
            == value(launch.process("decode-0"), "--page-size")
            == size
        )


def test_B66_a_page_size_of_the_user_holds_for_both_and_says_what_it_replaced() -> None:
    launch = contract(MODEL_NAME="DeepSeek-V4-Pro", HICACHE_PAGE_SIZE="64", **ON)
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--page-size") == "64"
        assert source(launch, name, "argv/--page-size") == "environment contract HICACHE_PAGE_SIZE"
    with pytest.raises(ParityError, match="page-size"):
        planned(settings={"kv_offloading": "dram"}, prefill=RoleSpec(settings={"hicache_page_size": 64}))


@pytest.mark.parametrize(
    ("extra", "size"),
    [
        ({"TOTAL_CPU_DRAM_GB": "1600"}, "200"),
        ({"TOTAL_CPU_DRAM_GB": "1600", "HICACHE_HOST_POOL_COUNT": "2"}, "100"),
        ({"TOTAL_CPU_DRAM_GB": "1601"}, "200"),
        ({"TOTAL_CPU_DRAM_GB": "1600", "PREFILL_TP_SIZE": "4"}, "400"),
    ],
)
def test_a_budget_is_shared_by_the_ranks_of_a_node(extra: dict[str, str], size: str) -> None:
    process = contract(**ON, **extra).process("prefill-0")
    assert value(process, "--hicache-size") == size
    assert "--hicache-ratio" not in process.argv


def test_a_budget_is_shared_by_the_workers_of_a_node_and_counts_on_each_node_of_a_worker() -> None:
    given = {"kv_offloading": "dram", "total_cpu_dram_gb": 1600.0}
    shared = planned(prefill=RoleSpec(workers=2, tp=4), pack=True, settings=given)
    assert {value(shared.process(name), "--hicache-size") for name in ("prefill-0", "prefill-1")} == {"200"}
    wide = planned(nodes=3, prefill=RoleSpec(tp=16), settings=given)
    assert {value(wide.process(name), "--hicache-size") for name in ("prefill-0", "prefill-0.1")} == {"200"}


def test_a_forced_ratio_beats_the_budget() -> None:
    process = contract(**ON, TOTAL_CPU_DRAM_GB="1600", FORCE_HICACHE_RATIO="1", HICACHE_RATIO="2.5").process(
        "prefill-0"
    )
    assert value(process, "--hicache-ratio") == "2.5"
    assert "--hicache-size" not in process.argv


def test_a_budget_of_less_than_a_gigabyte_a_rank_is_refused() -> None:
    with pytest.raises(SpecError, match=r"7 GB of host memory .* less than a gigabyte.*total_cpu_dram_gb"):
        contract(**ON, TOTAL_CPU_DRAM_GB="7")


def test_the_budget_must_be_free_on_prefill_nodes() -> None:
    launch = contract(**ON, TOTAL_CPU_DRAM_GB="1600")
    asked = [
        [check.target for check in rank.groups[0].preflight if check.kind == "memory_free"] for rank in launch.ranks
    ]
    assert asked == [[str(1600 * 10**9)], []]


# --- the store ---------------------------------------------------------------------------------------------------


def test_every_server_waits_for_the_store() -> None:
    launch = contract(**STORE)
    master = launch.process("mooncake-master")
    assert master in launch.ranks[0].processes()
    assert {proof.target for proof in master.ready} == {
        "10.0.0.1:50061",
        "http://10.0.0.1:8080/health",
        "http://10.0.0.1:9003/get_all_segments",
    }
    for name in ("prefill-0", "decode-0"):
        assert ("mooncake-master", "ready") in [(edge.process, edge.until) for edge in launch.process(name).after]


def test_B77_each_server_gives_the_store_its_own_address() -> None:
    launch = contract(**STORE, xP="2", IPADDRS="10.0.0.1,10.0.0.2,10.0.0.3", IBDEVICES="rdma0,rdma1")
    for name, address in (("prefill-0", "10.0.0.1"), ("prefill-1", "10.0.0.2")):
        config = store_config(launch, name)
        assert config["local_hostname"] == address
        assert config["master_server_address"] == "10.0.0.1:50061"
        assert config["device_name"] == "rdma0,rdma1"


def test_what_the_store_is_always_told_has_a_source() -> None:
    launch = contract(**STORE)
    told = {
        "--enable_http_metadata_server": "true",
        "--enable_metric_reporting": "true",
        "--http_metadata_server_host": "0.0.0.0",
    }
    for name, text in told.items():
        assert f"{name}={text}" in launch.process("mooncake-master").argv
        assert source(launch, "mooncake-master", f"argv/{name}") == "engine default (plugin sglang-disagg)"


def test_ports_of_the_store_are_told_to_all_who_use_them() -> None:
    named = {"MC_MASTER_PORT": "20050", "MC_METADATA_PORT": "20080", "MC_METRICS_PORT": "20090"}
    launch = contract(**STORE, **named, MC_PROTOCOL="rdma", MC_GLOBAL_SEG="128gb")
    master = launch.process("mooncake-master")
    assert master.ports == {"rpc": 20050, "metadata": 20080, "metrics": 20090}
    assert value(master, "--rpc_port") == "20050"
    assert value(master, "--http_metadata_server_port") == "20080"
    config = store_config(launch, "prefill-0")
    assert config["metadata_server"] == "http://10.0.0.1:20080/metadata"
    assert (config["protocol"], config["global_segment_size"]) == ("rdma", "128gb")
    key = "argv/--hicache-storage-backend-extra-config/protocol"
    assert source(launch, "prefill-0", key) == "environment contract MC_PROTOCOL"


def test_a_default_port_of_the_store_that_somebody_has_moves_everywhere() -> None:
    launch = contract({0: NodeFacts(listening_ports=[8080, 9003])}, **STORE, IBDEVICES="rdma0")
    master = launch.process("mooncake-master")
    assert master.ports["metadata"] not in (8080, 9003)
    url = store_config(launch, "prefill-0")["metadata_server"]
    assert url == f"http://10.0.0.1:{master.ports['metadata']}/metadata"


def test_a_store_for_prefill_alone_is_a_store() -> None:
    given = {"kv_offloading": "dram", "hicache_storage_backend": "mooncake", "mc_master_port": 20050}
    launch = planned(prefill=RoleSpec(settings=given))
    assert launch.process("mooncake-master").ports["rpc"] == 20050
    assert store_config(launch, "prefill-0")["master_server_address"] == "10.0.0.1:20050"
    assert launch.warnings == ()


def test_another_store_is_not_started() -> None:
    launch = contract(**ON, HICACHE_STORAGE_BACKEND="file")
    assert "mooncake-master" not in launch.process_names()
    assert value(launch.process("prefill-0"), "--hicache-storage-backend") == "file"
    assert "--hicache-storage-backend-extra-config" not in launch.process("prefill-0").argv


def test_the_stores_master_serves_http_by_ipv4_alone() -> None:
    settings = {"kv_offloading": "dram", "hicache_storage_backend": "mooncake"}
    with pytest.raises(SpecError, match=r"rank 0 \(fd00::1\), but mooncake_master serves HTTP by IPv4 only"):
        planned(network="fd00::{}", settings=settings)
