"""What is given to vLLM and its router by hand: against the plan it is refused, the same as the plan passes."""

from __future__ import annotations

import pytest

from disagg_run import DisaggError, ProcessSpec
from tests.engine_plans import typed
from tests.vllm_by_hand import PLANS, given, message, on_loopback, variable
from tests.vllm_plans import planned, value, warnings

# --- servers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words", "told", "remedy"),
    [
        ("moriio", "--model /other", "made without --model", "use --model-path /other in its place"),
        ("moriio", "--config x.yaml", "write them out as --args", "leave it out"),
        ("moriio", "--config=x.yaml", "write them out as --args", "leave it out"),
        ("moriio", "--uds /run/x", "plain HTTP over TCP", "leave it out"),
        ("moriio", "--grpc", "plain HTTP over TCP", "leave it out"),
        ("moriio", "--ssl-keyfile /k --ssl-certfile /c", "plain HTTP over TCP", "leave it out"),
        ("moriio", "--ssl-certfile /c", "plain HTTP over TCP", "leave it out"),
        ("moriio", "--ssl-ca-certs /c", "plain HTTP over TCP", "leave it out"),
        ("moriio", "--ssl-cert-reqs 2", "plain HTTP over TCP", "leave it out"),
        ("moriio", "--api-key sk", "would stand in the plan", "leave it out"),
        ("moriio", "--host 127.0.0.1", "made for '0.0.0.0'", "leave it out"),
        ("moriio", "--host 192.168.0.1", "made for '0.0.0.0'", "leave it out"),
        ("moriio", "--tokens-only", "a text is completed", "leave it out"),
        ("moriio", "--skip-tokenizer-init", "a text is completed", "leave it out"),
        ("moriio", "--runner pooling", "not made for that", "leave it out"),
        ("moriio", "--convert embed", "not made for that", "leave it out"),
        ("moriio", "--distributed-executor-backend ray", "not made for that", "leave it out"),
        ("moriio", "--distributed-executor-backend external_launcher", "places each process", "leave it out"),
        ("moriio", "--distributed-executor-backend uni", "not made for that", "leave it out"),
        ("moriio", "-dpb ray", "made for 'mp'", "leave it out"),
        ("moriio", "-dpn 1", "made without --data-parallel-rank", "leave it out"),
        ("moriio", "-dpe", "made without --data-parallel-external-lb", "leave it out"),
        ("moriio", "-dpm", "made without --data-parallel-multi-port-external-lb", "leave it out"),
        ("moriio", "-dph", "made without --data-parallel-hybrid-lb", "use --set dp_hybrid=true in its place"),
        ("dep", "-dpl 4", "made for '8'", "follows from --nodes"),
        ("moriio", "-dpl 2", "made for '1'", "follows from --nodes"),
        ("dep", "--data-parallel-start-rank 0", "made without --data-parallel-start-rank", "follows from --nodes"),
        ("dep", "--data-parallel-address 10.0.0.9", "made for '127.0.0.1'", "leave it out"),
        ("moriio", "--master-addr 10.0.0.9", "made for '127.0.0.1'", "leave it out"),
        ("moriio", "-pcp 2", "multiply the GPUs", "leave it out"),
        ("moriio", "--device-ids 4,5,6,7", "the plan chooses the GPUs", "leave it out"),
        ("moriio", "--kv-offloading-size 10", "in the place of the connector", "leave it out"),
        ("moriio", "--api-server-count 0", "the node serves HTTP", "leave it out"),
        ("ep", "--no-enable-expert-parallel", "made for '--enable-expert-parallel'", "use --no-prefill-ep in its"),
        ("files", "--enable-prefix-caching", "made for '--no-enable-prefix-caching'", "leave it out"),
        ("tp over nodes", "--master-addr 10.0.0.9", "made for '10.0.0.1'", "leave it out"),
        ("tp over nodes", "--master-port 29999", "made for '29501'", "leave it out"),
        ("dp over nodes", "--data-parallel-address 10.0.0.9", "made for '10.0.0.1'", "leave it out"),
        ("dp over nodes", "--data-parallel-rpc-port 1234", "made for '29550'", "leave it out"),
        ("dp over nodes", "--data-parallel-hybrid-lb", "made without", "use --set dp_hybrid=true in its place"),
        ("dp over nodes", "--api-server-count 2", "the node serves no HTTP", "leave it out"),
        ("hybrid", "--no-data-parallel-hybrid-lb", "made for", "use --set dp_hybrid=false in its place"),
        ("hybrid", "--data-parallel-start-rank 0", "made for '8'", "follows from --nodes"),
    ],
)
def test_a_servers_flag_against_the_plan_is_refused(kind: str, words: str, told: str, remedy: str) -> None:
    with pytest.raises(DisaggError) as caught:
        given(kind, words)
    text = message(caught)
    assert text.startswith(f"{words.split()[0].split('=')[0]} of prefill says ")
    assert "(Python --args)" in text
    assert told in text
    assert remedy in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("moriio", "--host 0.0.0.0"),
        ("moriio", "--host ::"),
        ("one node", "--host 10.0.0.1"),
        ("moriio", "--ssl-cert-reqs 0"),
        ("moriio", "--root-path /v"),
        ("moriio", "--runner generate"),
        ("moriio", "--distributed-executor-backend mp"),
        ("dep", "--distributed-executor-backend uni"),
        ("moriio", "-dpb mp"),
        ("moriio", "--no-data-parallel-hybrid-lb"),
        ("moriio", "--no-data-parallel-external-lb"),
        ("moriio", "--master-addr 127.0.0.1"),
        ("moriio", "--master-port 5000"),
        ("moriio", "-pcp 1"),
        ("moriio", "-dcp 2"),
        ("moriio", "--device-ids 0,1,2,3,4,5,6,7"),
        ("moriio", "--api-server-count 4"),
        ("moriio", "--enable-expert-parallel"),
        ("ep", "-ep"),
        ("dep", "-dpl 8"),
        ("dep", "--data-parallel-address 127.0.0.1"),
        ("files", "--no-enable-prefix-caching"),
        ("tp over nodes", "--master-port 29501"),
        ("dp over nodes", "--data-parallel-rpc-port 29550"),
        ("hybrid", "--data-parallel-hybrid-lb"),
    ],
)
def test_a_servers_flag_that_says_what_the_plan_says_or_what_is_free_passes(kind: str, words: str) -> None:
    launch, usual = given(kind, words), planned(**PLANS[kind])
    assert launch.process("prefill-0").ports == usual.process("prefill-0").ports
    assert warnings(launch) == warnings(usual)


def test_a_process_by_its_name_is_held_too() -> None:
    with pytest.raises(DisaggError, match=r"--master-port of prefill says '29999' .* made for '29501'"):
        given("tp over nodes", "--master-port 29999", "prefill-0.1")
    with pytest.raises(DisaggError, match=r"--host of prefill says '10\.0\.0\.2' .* made for '0\.0\.0\.0'"):
        given("moriio", "--host 10.0.0.2", "prefill-0")
    assert value(given("moriio", "--host 10.0.0.1", "prefill-0").process("prefill-0"), "--host") == "10.0.0.1"
    assert value(given("dp over nodes", "-asc 2", "prefill-0").process("prefill-0"), "-asc") == "2"


def test_nodes_of_one_machine_keep_their_own_addresses() -> None:
    with pytest.raises(DisaggError, match=r"--host of prefill says '0\.0\.0\.0' .* made for '127\.0\.0\.1'"):
        on_loopback("0.0.0.0")
    assert value(on_loopback("127.0.0.1").process("prefill-0"), "--host") == "127.0.0.1"


@pytest.mark.parametrize("words", ["--tensor-parallel-siz 4", "--tensor_parallel_s=4", "--tensor 4"])
def test_the_beginning_of_a_name_is_held_as_the_parser_reads_it(words: str) -> None:
    with pytest.raises(DisaggError, match=r"says '4' .* made for '8' .* use --prefill-tp 4"):
        planned(args=[typed(*words.split())], engine_version="0.25.0")
    same = planned(args=[typed(*words.replace("4", "8").split())], engine_version="0.25.0")
    assert same.process("prefill-0").argv == planned(engine_version="0.25.0").process("prefill-0").argv


@pytest.mark.parametrize("words", ["-O3", "-O 3", "-O=3", "--optimization-level 3", "--optimization_level=3"])
@pytest.mark.parametrize("version", ["0.22.1", "0.32.0"])
def test_optimization_levels_are_taken_as_the_parser_takes_them(words: str, version: str) -> None:
    argv = planned(args=[typed(*words.split())], engine_version=version).process("decode-0").argv
    at = next(at for at, word in enumerate(argv) if word == "-O" or word.startswith("--optimization"))
    assert argv[at + 1] == "3"


@pytest.mark.parametrize(("words", "told"), [("-Odecode", "takes 0, 1, 2, 3"), ("-O.mode=3", "no flag '-O.mode'")])
def test_what_the_engine_would_not_take_for_a_level_is_refused(words: str, told: str) -> None:
    with pytest.raises(DisaggError, match=told):
        given("moriio", words)


# --- the router --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        ("moriio", "--host 127.0.0.1", "made for '0.0.0.0'"),
        ("moriio", "--kv-connector nixl", "made for 'moriio'"),
        ("nixl", "--kv-connector mooncake", "made for 'nixl'"),
        ("moriio", "--vllm-discovery-address 0.0.0.0:36368", "made for '0.0.0.0:36367'"),
        ("moriio", "--vllm-discovery-address 127.0.0.1:36367", "made for '0.0.0.0:36367'"),
        ("nixl", "--vllm-discovery-address 0.0.0.0:36367", "the router is told its workers"),
        ("moriio", "--prefill http://10.0.0.1:2584", "servers register with the router"),
        ("moriio", "--decode http://10.0.0.2:2584", "servers register with the router"),
        ("nixl", "--prefill http://10.0.0.7:2584", "made for 'http://10.0.0.1:2584'"),
        ("nixl", "--decode http://10.0.0.1:2584", "made for 'http://10.0.0.2:2584'"),
        ("nixl", "--worker-urls http://10.0.0.1:2584", "prefill or decode"),
        ("nixl", "--service-discovery", "no Kubernetes"),
        ("nixl", "--enable-igw", "finds no worker"),
        ("nixl", "--mini-lb", "for debugging"),
        ("nixl", "--api-key sk", "pass OPENAI_API_KEY by --secret"),
        ("nixl", "--intra-node-data-parallel-size 8", "made for '1'"),
    ],
)
def test_a_flag_of_the_router_against_the_plan_is_refused(kind: str, words: str, told: str) -> None:
    with pytest.raises(DisaggError) as caught:
        given(kind, words, "router")
    text = message(caught)
    assert text.startswith(f"{words.split()[0]} of router says ")
    assert "(Python --args)" in text
    assert told in text
    assert "leave it out" in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("moriio", "--vllm-pd-disaggregation"),
        ("moriio", "--host 0.0.0.0"),
        ("moriio", "--host 10.0.0.1"),
        ("moriio", "--kv-connector moriio"),
        ("moriio", "--vllm-discovery-address 10.0.0.1:36367"),
        ("nixl", "--prefill http://10.0.0.1:2584"),
        ("nixl", "--prometheus-host 0.0.0.0"),
        ("nixl", "--worker-startup-timeout-secs 60"),
        ("dep", "--intra-node-data-parallel-size 8"),
    ],
)
def test_a_flag_of_the_router_that_says_what_the_plan_says_or_what_is_free_passes(kind: str, words: str) -> None:
    launch = given(kind, words, "router")
    assert words.split()[-1] in launch.process("router").argv


# --- variables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "text", "told", "remedy"),
    [
        ("nixl", "VLLM_NIXL_SIDE_CHANNEL_PORT", "5700", "gives it port 5600 as 'side_channel'", "leave it out"),
        ("one node, nixl", "VLLM_NIXL_SIDE_CHANNEL_PORT", "5600", "decode-0 says '5600'", "leave it out"),
        ("one node", "VLLM_PORT", "2584", "made for '20000'", "leave it out"),
        ("moriio", "VLLM_HOST_IP", "0.0.0.0", "a node's own", "leave it out"),
        ("nixl", "VLLM_NIXL_SIDE_CHANNEL_HOST", "0.0.0.0", "a node's own", "leave it out"),
        ("moriio", "VLLM_DP_SIZE", "2", "made for '1'", "leave it out"),
        ("moriio", "VLLM_DP_RANK", "1", "made for '0'", "leave it out"),
        ("moriio", "VLLM_DP_RANK_LOCAL", "1", "made for '0'", "leave it out"),
        ("moriio", "VLLM_DP_MASTER_IP", "10.0.0.9", "made without VLLM_DP_MASTER_IP", "leave it out"),
        ("moriio", "VLLM_DP_MASTER_PORT", "1234", "made without VLLM_DP_MASTER_PORT", "leave it out"),
        ("moriio", "VLLM_API_KEY", "sk", "neither probes nor the router bring a key", "leave it out"),
        ("moriio", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0", "made for '1'", "leave it out"),
        ("moriio", "VLLM_MORIIO_CONNECTOR_READ_MODE", "0", "does not read the variable", "use --set read_mode=0 in"),
        ("moriio", "VLLM_MORIIO_QP_PER_TRANSFER", "4", "made without", "use --set qp_per_transfer=4 in its place"),
    ],
)
def test_a_variable_against_the_plan_is_refused(kind: str, name: str, text: str, told: str, remedy: str) -> None:
    with pytest.raises(DisaggError) as caught:
        variable(kind, name, text)
    said = message(caught)
    assert said.startswith(name)
    assert told in said
    assert remedy in said


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("nixl", "VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"),
        ("moriio", "VLLM_NIXL_SIDE_CHANNEL_PORT", "5700"),
        ("one node", "VLLM_PORT", ""),
        ("moriio", "VLLM_PORT", "30100"),
        ("moriio", "VLLM_DP_SIZE", "1"),
        ("moriio", "VLLM_DP_RANK", "0"),
        ("dep", "VLLM_DP_SIZE", "8"),
        ("moriio", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "1"),
        ("moriio", "VLLM_MORIIO_CONNECTOR_READ_MODE", "1"),
        ("old", "VLLM_MORIIO_CONNECTOR_READ_MODE", "0"),
        ("moriio", "MASTER_ADDR", "10.0.0.9"),
        ("moriio", "VLLM_LOGGING_LEVEL", "DEBUG"),
    ],
)
def test_a_variable_that_says_what_the_plan_says_or_what_is_free_passes(kind: str, name: str, text: str) -> None:
    if kind == "one node":  # each server has a window of its own, so that one may be named for one server only
        own = planned(**PLANS[kind]).process("decode-0").env[name]
        launch = planned(processes={"decode-0": ProcessSpec(env={name: own})}, **PLANS[kind])
        assert launch.process("decode-0").env[name] == own
        return
    assert variable(kind, name, text).process("decode-0").env[name] == text


def test_a_key_that_probes_do_not_bring_is_refused_as_a_secret_too() -> None:
    with pytest.raises(DisaggError, match=r"VLLM_API_KEY of prefill-0 is a secret .* bring a key"):
        planned(secrets=["VLLM_API_KEY"])
    assert planned(secrets=["HF_TOKEN"]).process("decode-0").secrets == ("HF_TOKEN",)
