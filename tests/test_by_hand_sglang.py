"""SGLang, its connectors, its store and sglang-router: what is given by hand against the plan is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from disagg_run import ArgText, FlagError, LaunchPlan, ProcessSpec, RoleSpec, SpecError
from disagg_run.spec.model import RouterSpec
from tests.sglang_plans import contract, planned

EP: dict[str, Any] = {"prefill": {"expert_parallel": True, "dp_attention": True}}
OVER_TWO: dict[str, Any] = {"nodes": 3, "prefill": {"tp": 16}}
IPV6: dict[str, Any] = {"network": "fd00::{}"}
OLD: dict[str, Any] = {"engine_version": "0.5.9", "connector": "sglang-mooncake", "decode": {"tp": 4}}
MOONCAKE: dict[str, Any] = {"connector": "sglang-mooncake"}
HICACHE: dict[str, Any] = {"settings": {"kv_offloading": "dram"}}
STORE: dict[str, Any] = {"settings": {"kv_offloading": "dram", "hicache_storage_backend": "mooncake"}}
DEVICES: dict[str, Any] = {"ib_devices": ["rdma0", "rdma1"]}
EXTRA = "--hicache-storage-backend-extra-config"


def given(target: str, *words: str, env: dict[str, str] | None = None, **spec: Any) -> LaunchPlan:
    """The plan with words and variables for the servers of a role, the router or a process by its name."""
    asked: dict[str, Any] = {"args": [ArgText(words=words)] if words else [], "env": env or {}}
    roles: dict[str, dict[str, Any]] = {name: dict(spec.pop(name, {})) for name in ("prefill", "decode")}
    if target in roles:
        roles[target] |= asked
    elif target == "router":
        spec["router"] = RouterSpec(**asked)
    else:
        spec["processes"] = {target: ProcessSpec(**asked)}
    spec |= {name: RoleSpec(**fields) for name, fields in roles.items()}
    return planned(**spec)


def process_of(target: str) -> str:
    return f"{target}-0" if target in ("prefill", "decode") else target


#: Who is told, the words, how the plan is made or what it says, the remedy, further fields of the spec.
CONTRADICTIONS: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("prefill", "--dist-init-addr 10.0.0.1:5000", "made without --dist-init-addr", "leave it out", {}),
    ("prefill", "--nccl-init-addr 10.0.0.9:20000", "made for '10.0.0.1:20000'", "leave it out", OVER_TWO),
    ("decode", "--nccl-port 29500", "the engine takes a port that is free", "leave it out", {}),
    ("prefill", "--host 127.0.0.1", "made for '0.0.0.0'", "leave it out", {}),
    ("decode", "--host 10.0.0.1", "made for '0.0.0.0'", "leave it out", {}),
    ("prefill", "--host 0.0.0.0", "made for '::'", "leave it out", IPV6),
    ("prefill", "--disaggregation-mode decode", "made for 'prefill'", "it follows from --prefill", {}),
    ("decode", "--disaggregation-mode null", "made for 'decode'", "it follows from --decode", {}),
    *(
        (role, "--disaggregation-transfer-backend mooncake", "made for 'mori'", "use --connector sglang-mooncake", {})
        for role in ("prefill", "decode")
    ),
    ("decode", "--disaggregation-transfer-backend nixl", "made for 'mori'", "it follows from --connector", {}),
    ("decode", "--disaggregation-transfer-backend mori", "made for 'mooncake'", "--connector sglang-mori", MOONCAKE),
    ("decode", "--disaggregation-bootstrap-port 9001", "made for '8998'", "use --set bootstrap_port=9001 in", {}),
    ("prefill", "--disaggregation-bootstrap-port 9001", "made for '8998'", "use --set bootstrap_port=9001", OVER_TWO),
    ("prefill", "--disaggregation-ib-device rdma1", "made for 'rdma0,rdma1'", "follows from --ib-devices", DEVICES),
    ("decode", "--disaggregation-ib-device rdma1", "the engine chooses devices", "follows from --ib-devices", {}),
    ("prefill", '--disaggregation-ib-device {"0":"mlx5_9"}', "made for 'rdma0,rdma1'", "--ib-devices", DEVICES),
    ("prefill", "--base-gpu-id 4", "made for '0'", "the plan chooses a server's GPUs", {"prefill": {"tp": 4}}),
    ("prefill", "--gpu-id-step 2", "made for '1'", "the plan chooses a server's GPUs", {"prefill": {"tp": 4}}),
    ("prefill", "--ep-size 8", "made for '1'", "it follows from --prefill-ep", {}),
    ("decode", "--expert-parallel-size 8", "made for '1'", "it follows from --decode-ep", {}),
    ("prefill", "--ep 4", "made for '8'", "it follows from --prefill-ep", EP),
    ("prefill", "--moe-dp-size 2", "made for '1'", "it follows from --prefill-ep", EP),
    ("prefill", "--dwdp-size 8", "made for '1'", "it follows from --prefill-dp-attention", {}),
    ("prefill", "--config /etc/sglang.yaml", "seen by nobody here: write them out as --args", "leave it out", {}),
    ("prefill", "--ssl-keyfile /k", "probes and the router speak plain HTTP", "leave it out", {}),
    ("prefill", "--ssl-certfile /c", "probes and the router speak plain HTTP", "leave it out", {}),
    ("decode", "--grpc-mode", "probes and the router speak plain HTTP", "leave it out", {"engine_version": "0.5.12"}),
    ("decode", "--smg-grpc-mode", "probes and the router speak plain HTTP", "leave it out", {}),
    ("prefill", "--api-key s3cret", "ask for keys in front of the router", "leave it out", {}),
    ("prefill", "--encoder-only", "a run is ready when a text is completed", "leave it out", {}),
    ("decode", "--is-embedding", "a run is ready when a text is completed", "leave it out", {}),
    ("decode", "--skip-tokenizer-init", "a run is ready when a text is completed", "leave it out", {}),
    ("prefill", "--gated-launch-port 7000", "a gate that nobody opens", "leave it out", {}),
    ("prefill", "--weight-cache-mode daemon", "hold weights and serve nothing", "leave it out", {}),
    ("decode", "--enable-pdmux", "one server would prefill and decode", "leave it out", {}),
    ("decode", "--grpc-port 8000", "not made for that", "leave it out", {}),
    ("prefill", "--grpc-port 30000", "gives that port of the node to something else", "leave it out", {}),
    ("prefill", "--engine-info-bootstrap-port 8998", "gives that port of the node", "leave it out", {}),
    ("prefill", "--use-ray", "the plan places each process itself", "leave it out", {}),
    ("decode", "--elastic-ep-join-mode scale", "all ranks of a worker from the start", "leave it out", {}),
    ("decode", "--elastic-ep-rejoin", "all ranks of a worker from the start", "", {"engine_version": "0.5.19"}),
    ("prefill", "--disaggregation-decode-tp 8", "made for '4'", "use --decode-tp 8", OLD),
    ("prefill", "--disaggregation-decode-dp 8", "made for '1'", "use --decode-dp 8", OLD),
    ("decode", "--disaggregation-prefill-pp 2", "made for '1'", "use --prefill-pp 2", OLD),
    ("prefill", "--enable-hierarchical-cache", "use --set kv_offloading=dram", "leave it out", {}),
    ("prefill", "--disable-radix-cache", "HiCache needs it", "leave it out", HICACHE),
    ("prefill", "--hicache-storage-backend file", "for 'mooncake'", "--set hicache_storage_backend=file in its", STORE),
    ("router", "--host 127.0.0.1", "made for '0.0.0.0'", "leave it out", {}),
    ("router", "--host ::1", "made for '[::]'", "leave it out", IPV6),
    ("router", "--prefill http://10.0.0.9:8000", "made for 'http://10.0.0.1:8000'", "follows from --nodes", {}),
    ("router", "--prefill http://10.0.0.1:8000 9000", "made for 'http://10.0.0.1:8000'", "follows from --nodes", {}),
    ("router", "--prefill http://10.0.0.2:8000", "made for 'http://10.0.0.1:8000'", "follows from --nodes", {}),
    ("router", "--decode http://10.0.0.1:8000", "made for 'http://10.0.0.2:8000'", "follows from --nodes", {}),
    ("router", "--worker-urls http://10.0.0.1:8000", "a worker is prefill or decode", "leave it out", {}),
    ("router", "--service-discovery", "the router is told its workers", "leave it out", {}),
    ("router", "--mini-lb", "no answer to say that its workers are ready", "leave it out", {}),
    ("router", "--tls-cert-path /c", "probes and the router speak plain HTTP", "leave it out", {}),
    ("router", "--tls-key-path /k", "probes and the router speak plain HTTP", "leave it out", {}),
    ("router", "--api-key s3cret", "brings no key", "leave it out", {}),
    ("router", "--backend openai", "made for 'sglang'", "it follows from --engine", {}),
    *(
        ("mooncake-master", f"{flag} 50099", "made for", f"use --set {setting}=50099 in its place", STORE)
        for flag, setting in (
            ("--rpc_port", "mc_master_port"),
            ("--http_metadata_server_port", "mc_metadata_port"),
            ("--metrics_port", "mc_metrics_port"),
        )
    ),
    ("mooncake-master", "-rpc_port=50099", "it is --rpc_port: write it so", "leave it out", STORE),
    ("mooncake-master", "--rpc-port=50099", "it is --rpc_port: write it so", "leave it out", STORE),
    ("mooncake-master", "--rpc_address=127.0.0.1", "made for '0.0.0.0'", "leave it out", STORE),
    ("mooncake-master", "--rpc_interface=lo", "clients are told the node's address", "leave it out", STORE),
    ("mooncake-master", "--metrics_host 127.0.0.1", "made for '0.0.0.0'", "leave it out", STORE),
    ("mooncake-master", "--http_metadata_server_host=127.0.0.1", "made for '0.0.0.0'", "leave it out", STORE),
    ("mooncake-master", "--enable_http_metadata_server=false", "clients ask it where", "leave it out", STORE),
    ("mooncake-master", "--noenable_http_metadata_server", "clients ask it where", "leave it out", STORE),
    ("mooncake-master", "--enable_ha=true", "clients are told one master", "leave it out", STORE),
    ("mooncake-master", "--config_path=/m.yaml", "write them out as args", "leave it out", STORE),
    ("mooncake-master", "--flagfile=/m.flags", "write them out as args", "leave it out", STORE),
    ("mooncake-master", "--fromenv=rpc_port", "write them out as args", "leave it out", STORE),
]


@pytest.mark.parametrize(("target", "words", "said", "remedy", "spec"), CONTRADICTIONS)
def test_words_against_the_plan_are_refused_with_both_sides_and_what_to_do(
    target: str, words: str, said: str, remedy: str, spec: dict[str, Any]
) -> None:
    with pytest.raises(FlagError) as caught:
        given(target, *words.split(), **spec)
    message = str(caught.value)
    assert message.startswith(f"{words.split()[0].partition('=')[0]} of {target} says ")
    assert "(Python), but the plan is " in message
    assert said in message
    assert remedy in message
    assert "\n" not in message
    assert "s3cret" not in message


#: Who is told, words that say what the plan says or what it does not speak of, further fields of the spec.
AGREEMENTS: list[tuple[str, str, dict[str, Any]]] = [
    ("prefill", "--host 0.0.0.0", {}),
    ("prefill", "--host 10.0.0.1", {}),
    ("prefill", "--host fd00::1", IPV6),
    ("prefill", "--disaggregation-mode prefill --disaggregation-bootstrap-port 8998", {}),
    ("decode", "--disaggregation-bootstrap-port 8998 --disaggregation-transfer-backend mori", {}),
    ("decode", "--disaggregation-bootstrap-port 9100", {"settings": {"bootstrap_port": 9100}}),
    ("prefill", "--dist-init-addr 10.0.0.1:20000 --disaggregation-bootstrap-port 8998", OVER_TWO),
    ("prefill", "--disaggregation-ib-device rdma0,rdma1", DEVICES),
    ("prefill", "--disaggregation-ib-device rdma1,rdma0", DEVICES),
    ("prefill", '--disaggregation-ib-device {"0":"rdma0","1":"rdma1"}', DEVICES),
    ("prefill", '--disaggregation-ib-device {"0":"rdma7"}', {}),
    ("prefill", "--disaggregation-ib-device /etc/devices.json", DEVICES),
    ("prefill", "--base-gpu-id 0 --gpu-id-step 1 --ep-size 1", {}),
    ("prefill", "--ep-size 8 --moe-dp-size 1", EP),
    ("prefill", "--dwdp-size 8", EP),
    ("prefill", "--moe-dp-size 2 --attn-cp-size 2 --grpc-port 40000", {}),
    ("prefill", "--dist-timeout 600 --skip-server-warmup --tokenizer-worker-num 4 --watchdog-timeout 60", {}),
    ("decode", "--load-balance-method total_tokens --fastapi-root-path /sgl --enable-http2 --log-level debug", {}),
    ("decode", "--weight-cache-mode off --disaggregation-decode-polling-interval 2", {}),
    ("prefill", "--hicache-ratio 2 --hicache-storage-backend file", HICACHE),
    ("prefill", "--hicache-storage-backend mooncake", STORE),
    ("decode", "--disable-radix-cache", {}),
    ("prefill", "--disaggregation-decode-tp 4 --disaggregation-decode-dp 1", OLD),
    ("router", "--host 0.0.0.0 --port 30000 --pd-disaggregation --backend sglang", {}),
    ("router", "--host [::]", {}),
    ("router", "--host 10.0.0.1", {}),
    ("router", "--host [fd00::1]", IPV6),
    ("router", "--prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000", {}),
    ("router", "--prefill http://10.0.0.1:8000 8998", {}),
    ("router", "--prefill http://10.0.0.1:8000 9100", {"settings": {"bootstrap_port": 9100}}),
    ("router", "--prometheus-host 127.0.0.1 --request-timeout-secs 9 --policy round_robin --enable-igw", {}),
    ("mooncake-master", "--rpc_port 50061 --metrics_port=9003 --rpc_address=10.0.0.1", STORE),
    ("mooncake-master", "--enable_http_metadata_server=true --enable_ha=false", STORE),
    ("mooncake-master", "--enable_disk_eviction=false --eviction_ratio 0.1 --rpc_thread_num=8", STORE),
]


@pytest.mark.parametrize(("target", "words", "spec"), AGREEMENTS)
def test_words_that_agree_with_the_plan_or_that_it_does_not_speak_of_are_taken(
    target: str, words: str, spec: dict[str, Any]
) -> None:
    launch = given(target, *words.split(), **spec)
    argv = launch.process(process_of(target)).argv
    assert set(words.split()) <= set(argv)


@pytest.mark.parametrize("words", ["--tp 8", "--tp=8", "--tensor 8", "--tp 08"])
def test_the_beginning_of_a_name_that_says_what_the_plan_says_adds_nothing(words: str) -> None:
    made = given("prefill", *words.split()).process("prefill-0")
    assert made.argv == planned().process("prefill-0").argv


def test_the_beginning_of_a_name_that_says_otherwise_or_fits_two_flags_is_refused() -> None:
    with pytest.raises(FlagError, match=r"--tp of prefill says '4' .* made for '8' .*use --prefill-tp 4 in its place"):
        given("prefill", "--tp", "4")
    with pytest.raises(FlagError, match="has no flag '--pp'"):  # --pp-size and --pp-async-batch-depth
        given("prefill", "--pp", "1")
    with pytest.raises(FlagError, match="has no flag '--context'"):  # the plan says none
        given("prefill", "--context", "4096")


def test_a_word_by_hand_stands_in_the_place_of_what_the_master_is_always_told() -> None:
    words = ("--enable_metric_reporting=false", "--http_metadata_server_host", "10.0.0.1")
    argv = given("mooncake-master", *words, **STORE).process("mooncake-master").argv
    about = [word for word in argv if "metric_reporting" in word or "server_host" in word]
    assert about == ["--enable_metric_reporting=false", "--http_metadata_server_host=10.0.0.1"]


def test_a_word_joined_by_equals_reaches_the_store_s_master_joined() -> None:
    # mooncake_master 0.3.13 takes "--enable_disk_eviction false" for true and a further word.
    argv = given("mooncake-master", "--enable_disk_eviction=false", "--eviction_ratio", "0.1", **STORE)
    words = argv.process("mooncake-master").argv
    assert "--enable_disk_eviction=false" in words
    assert words[words.index("--eviction_ratio") + 1] == "0.1"


@pytest.mark.parametrize("variable", ["ROUTER_POLICY_FLAGS", "ROUTER_CB_ARGS"])
def test_router_flags_as_one_text_are_by_hand_as_well(variable: str) -> None:
    def router(text: str) -> tuple[str, ...]:
        exported: dict[str, Any] = {variable: text}
        return contract(**exported).process("router").argv

    with pytest.raises(FlagError, match=rf"--mini-lb of router says .* {variable}\), but the plan is made without"):
        router("--policy random --mini-lb")
    with pytest.raises(FlagError, match=r"--host of router says '127\.0\.0\.1' .*made for '0\.0\.0\.0'"):
        router("--policy random --host 127.0.0.1")
    assert "--request-timeout-secs" in router("--request-timeout-secs 9")


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        ({"master_server_address": "10.0.0.9:50061"}, "master_server_address .* made for '10.0.0.1:50061'"),
        ({"metadata_server": "http://10.0.0.9:8080/metadata"}, r"metadata_server .* made for 'http://10\.0\.0\.1:8080"),
        ({"metadata-server": "P2PHANDSHAKE"}, "'metadata-server' .* is another key than 'metadata_server'"),
    ],
)
def test_the_store_s_clients_ask_the_planned_master(leaf: dict[str, str], said: str) -> None:
    with pytest.raises(FlagError, match=said):
        given("prefill", EXTRA, json.dumps(leaf), **STORE)


def test_how_clients_use_the_store_is_free() -> None:
    leaves = {"metadata_server": "P2PHANDSHAKE", "protocol": "rdma", "device_name": "rdma0", "check_server": True}
    argv = given("prefill", EXTRA, json.dumps(leaves), **STORE).process("prefill-0").argv
    config = json.loads(argv[argv.index(EXTRA) + 1])
    assert leaves.items() <= config.items()
    assert config["master_server_address"] == "10.0.0.1:50061"


# --- variables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "name", "text", "said", "spec"),
    [
        ("prefill", "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", "env://", "ranks meet where the plan says", {}),
        ("decode", "SGLANG_RUST_SERVER", "1", "made for '0'", {}),
        ("decode", "SGLANG_RUST_SERVER", "true", "made for '0'", {}),
        ("prefill", "NCCL_SOCKET_IFNAME", "lo", "not made for that .*a worker's nodes meet over it", OVER_TWO),
        ("prefill", "NCCL_SOCKET_IFNAME", "=lo", "not made for that", OVER_TWO),
        ("prefill", "GLOO_SOCKET_IFNAME", "lo", "not made for that", OVER_TWO),
        ("prefill", "HOST_IP", "10.9.9.9", r"made for '10\.0\.0\.1' .*SGLANG_HOST_IP is read first", {}),
        ("prefill-0", "SGLANG_HOST_IP", "127.0.0.1", "no other node reaches rank 0", {}),
        ("prefill-0", "SGLANG_HOST_IP", "0.0.0.0", "no other node reaches rank 0", {}),
        ("prefill-0", "MC_TCP_BIND_ADDRESS", "127.0.0.1", "no other node reaches rank 0", MOONCAKE),
        ("decode-0", "MC_RDMA_BIND_ADDRESS", "127.0.0.1", "no other node reaches rank 1", MOONCAKE),
        ("prefill", "MOONCAKE_MASTER", "10.0.0.9:50051", f"configuration is in {EXTRA}", STORE),
        ("prefill", "MOONCAKE_CONFIG_PATH", "/m.json", f"configuration is in {EXTRA}", STORE),
        ("prefill", "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "/m.json", f"configuration is in {EXTRA}", STORE),
        ("prefill", "MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE", f"configuration is in {EXTRA}", STORE),
        ("prefill", "MOONCAKE_GLOBAL_SEGMENT_SIZE", "1gb", f"configuration is in {EXTRA}", STORE),
        ("prefill-0", "MOONCAKE_LOCAL_HOSTNAME", "localhost", "no other node reaches rank 0", STORE),
    ],
)
def test_a_variable_against_the_plan_is_refused(
    target: str, name: str, text: str, said: str, spec: dict[str, Any]
) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        given(target, env={name: text}, **spec)
    assert str(caught.value).startswith(f"{name} of ")
    assert repr(text) in str(caught.value)
    assert "leave it out" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "name", "text", "spec"),
    [
        ("prefill", "SGLANG_RUST_SERVER", "0", {}),
        ("prefill", "SGLANG_RUST_SERVER", "false", {}),
        ("prefill", "SGLANG_RUST_SERVER", "No", {}),
        ("prefill", "NCCL_SOCKET_IFNAME", "lo", {}),
        ("decode", "NCCL_SOCKET_IFNAME", "lo", OVER_TWO),
        ("prefill", "NCCL_SOCKET_IFNAME", "eth0", OVER_TWO),
        ("prefill", "GLOO_SOCKET_IFNAME", "eth0", OVER_TWO),
        ("prefill", "HOST_IP", "10.0.0.1", {}),
        ("prefill-0", "SGLANG_HOST_IP", "192.168.7.1", {}),
        ("prefill-0", "MC_TCP_BIND_ADDRESS", "192.168.7.1", MOONCAKE),
        ("prefill", "MC_FORCE_TCP", "1", MOONCAKE),
        ("prefill", "MC_MIN_RPC_PORT", "16000", MOONCAKE),
        ("prefill", "SGLANG_PORT", "16000", {}),
        ("prefill", "MASTER_ADDR", "10.0.0.1", {}),
        ("prefill", "WORLD_SIZE", "8", {}),
        ("prefill", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "60", {}),
        ("prefill", "MOONCAKE_MASTER", "10.0.0.9:50051", HICACHE),
        ("decode", "MOONCAKE_MASTER", "10.0.0.9:50051", STORE),
        ("prefill-0", "MOONCAKE_LOCAL_HOSTNAME", "192.168.7.1", STORE),
        ("mooncake-master", "GLOG_minloglevel", "1", STORE),
    ],
)
def test_a_variable_that_agrees_or_that_nothing_follows_from_is_taken(
    target: str, name: str, text: str, spec: dict[str, Any]
) -> None:
    assert given(target, env={name: text}, **spec).process(process_of(target)).env[name] == text


def test_one_bind_address_for_several_nodes_is_refused() -> None:
    with pytest.raises(SpecError, match=r"MC_TCP_BIND_ADDRESS is '192\.168\.7\.1' .* it is a node's own"):
        planned(connector="sglang-mooncake", env={"MC_TCP_BIND_ADDRESS": "192.168.7.1"})
