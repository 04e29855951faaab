"""Leaves of ``--kv-transfer-config`` by hand: against the plan they are refused, the same as the plan pass."""

from __future__ import annotations

import pytest

from disagg_run import DisaggError
from tests.vllm_by_hand import given, message
from tests.vllm_plans import transfer

EXTRA = "--kv-transfer-config.kv_connector_extra_config."


@pytest.mark.parametrize(
    ("kind", "words", "told", "remedy"),
    [
        ("moriio", "--kv-transfer-config.kv_role kv_both", "made for 'kv_producer'", "leave it out"),
        ("nixl", "--kv-transfer-config.kv_role kv_consumer", "made for 'kv_producer'", "leave it out"),
        ("files", "--kv-transfer-config.kv_role kv_consumer", "made for 'kv_producer'", "leave it out"),
        ("moriio", "--kv-transfer-config.kv_connector NixlConnector", "'MoRIIOConnector'", "follows from --connector"),
        ("nixl", "--kv-transfer-config.kv_connector MoRIIOConnector", "'NixlConnector'", "follows from --connector"),
        ("files", "--kv-transfer-config.kv_connector NixlConnector", "'ExampleConnector'", "follows from --connector"),
        ("nixl", "--kv-transfer-config None", "is not set", "follows from --connector"),
        ("nixl", """--kv-transfer-config '{"KV-Role": "kv_both"}'""", "another key than 'kv_role'", "leave it out"),
        ("nixl", "--kv-transfer-config.kv_rank 0", "vLLM 0.32.0 does not read it", "leave it out"),
        ("one node, nixl", "--kv-transfer-config.engine_id x", "made without engine_id", "leave it out"),
        ("moriio", f"{EXTRA}proxy_ip 10.0.0.9", "made for '10.0.0.1'", "leave it out"),
        ("external", f"{EXTRA}proxy_ip 10.0.0.9", "made for '10.0.0.1'", "use --set router_address=10.0.0.9 in"),
        ("moriio", f"{EXTRA}proxy_ping_port 36368", "made for '36367'", "use --set discovery_port=36368 in its"),
        ("moriio", f"{EXTRA}http_port 8000", "made for '2584'", "use --set server_port=8000 in its place"),
        ("old", f"{EXTRA}read_mode false", "vLLM 0.22.1 does not read it", "leave it out"),
        ("old", f"{EXTRA}transfer_timeout 60", "vLLM 0.22.1 does not read it", "leave it out"),
        ("0.28", f"{EXTRA}recv_abort_timeout 60", "vLLM 0.28.0 does not read it", "leave it out"),
        ("files", f"{EXTRA}shared_storage_path /other", "'/shared'", "use --set shared_storage_path=/other in its"),
    ],
)
def test_a_leaf_against_the_plan_is_refused(kind: str, words: str, told: str, remedy: str) -> None:
    with pytest.raises(DisaggError) as caught:
        given(kind, words)
    text = message(caught)
    assert "(Python --args)" in text
    assert told in text
    assert remedy in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("moriio", "--kv-transfer-config.kv_connector MoRIIOConnector"),
        ("moriio", f"{EXTRA}proxy_ip 10.0.0.1"),
        ("moriio", f"{EXTRA}proxy_ping_port 36367"),
        ("moriio", f"{EXTRA}http_port 2584"),
        ("moriio", f"{EXTRA}handshake_port 6301"),
        ("moriio", f"{EXTRA}transfer_timeout 60"),
        ("moriio", f"{EXTRA}read_mode false"),
        ("nixl", "--kv-transfer-config.kv_role kv_both"),
        ("nixl", "--kv-transfer-config.kv_connector NixlPushConnector"),
        ("nixl-0.28", "--kv-transfer-config.kv_rank 0"),
        ("files", "--kv-transfer-config.kv_role kv_both"),
        ("files", f"{EXTRA}shared_storage_path /shared"),
    ],
)
def test_a_leaf_that_says_what_the_plan_says_or_what_is_free_passes(kind: str, words: str) -> None:
    launch = given(kind, words)
    key, _, text = words.rpartition(" ")
    assert str(transfer(launch.process("prefill-0"))[key.rpartition(".")[2]]).lower() == text.lower()


def test_nixl_beside_a_cache_is_an_experts_choice() -> None:
    parts = '[{"kv_connector": "NixlConnector"}, {"kv_connector": "OffloadingConnector"}]'
    several = f'{{"kv_connector": "MultiConnector", "kv_connector_extra_config": {{"connectors": {parts}}}}}'
    launch = given("nixl", f"--kv-transfer-config '{several}'")
    assert len(transfer(launch.process("decode-0"))["connectors"]) == 2


def test_each_role_keeps_its_own() -> None:
    with pytest.raises(DisaggError, match=r"kv_role of --kv-transfer-config of decode is 'kv_producer'"):
        given("nixl", "--kv-transfer-config.kv_role kv_producer", "decode-0")
    assert given("nixl", "--kv-transfer-config.kv_role kv_consumer", "decode-0").bound
