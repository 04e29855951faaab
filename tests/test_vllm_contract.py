"""What job scripts and master configs say to vLLM beside sizes and ports: evaluation, metrics, agents, policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disagg_run import FlagError, LaunchSpec, SpecError, plan
from disagg_run.declarations import Setting
from disagg_run.spec.reading import read_spec
from disagg_vllm import settings
from tests.master_entries import entry, read, settings_of
from tests.vllm_plans import HOST, contract, planned, source, value, warnings

VLLM: Mapping[tuple[str | int, ...], Any] = {
    ("image",): ...,
    ("model",): "amd/Kimi-K2.5-MXFP4",
    ("framework",): "vllm-disagg",
}
PORTS = {each.name for each in (*settings.ENGINE, *settings.MORIIO, *settings.NIXL) if each.name.endswith("_port")}


def asked(*texts: str, **more: Any) -> LaunchSpec:
    """The spec of a vLLM entry with some additional-settings."""
    spec: LaunchSpec = read(entry({**VLLM, **settings_of("decode", *texts), **more}))
    return spec


# --- job scripts -------------------------------------------------------------------------------------------------


def test_a_policy_of_a_job_script_reaches_the_router_unless_it_is_what_all_of_them_export() -> None:
    launch = contract(PREFILL_ROUTER_POLICY="cache_aware", DECODE_ROUTER_POLICY="random")
    router = launch.process("router")
    assert [value(router, flag) for flag in ("--policy", "--prefill-policy", "--decode-policy")] == [
        "consistent_hash",
        "cache_aware",
        "consistent_hash",
    ]
    assert source(launch, "router", "argv/--prefill-policy") == "environment contract PREFILL_ROUTER_POLICY"
    assert warnings(launch) == []


def test_R32_a_policy_of_another_router_is_refused_with_the_nearest() -> None:
    with pytest.raises(FlagError, match=r"does not take 'consistent_hashing': did you mean 'consistent_hash'"):
        contract(PREFILL_ROUTER_POLICY="consistent_hashing")


def test_an_agentic_job_keeps_the_prefix_cache_that_the_row_switches_off() -> None:
    for value_of, kept in (("1", True), ("0", False), ("", False)):
        launch = contract(IS_AGENTIC=value_of)
        argv = launch.process("prefill-0").argv
        assert ("--enable-prefix-caching" in argv, "--no-enable-prefix-caching" in argv) == (kept, not kept)
        assert warnings(launch) == []
    launch = contract(IS_AGENTIC="1")
    assert source(launch, "decode-0", "argv/--enable-prefix-caching").startswith("environment contract IS_AGENTIC")
    off = planned(settings={"agentic": True, "prefix_caching": False})
    assert "--no-enable-prefix-caching" in off.process("decode-0").argv


def test_what_the_client_and_every_server_do_anyway_changes_nothing_and_is_no_remark() -> None:
    plain = contract()
    for name in ("RUN_EVAL", "EVAL_ONLY"):
        launch = contract(**{name: "true"})
        assert warnings(launch) == []
        assert [each.argv for each in launch.ranks[0].processes()] == [each.argv for each in plain.ranks[0].processes()]
    assert warnings(contract(ENABLE_METRICS="1")) == []
    # A switch that would take the metrics away is not planned.
    assert "--disable-log-stats" not in plain.process("decode-0").argv


def test_what_only_another_engine_reads_is_one_remark() -> None:
    for name, text in (("KV_OFFLOADING", "dram"), ("ROUTER_POLICY_FLAGS", "--policy random"), ("HICACHE_RATIO", "3")):
        assert warnings(contract(**{name: text})) == [
            f"environment variable {name} says {text!r}, but nothing of vllm-disagg reads it"
        ]


# --- master configs ----------------------------------------------------------------------------------------------


def test_mori_is_moriio_s_name_too() -> None:
    for name, connector in (("mori", "vllm-moriio"), ("moriio", "vllm-moriio"), ("nixl", "vllm-nixl")):
        spec: LaunchSpec = read(entry({**VLLM, ("kv-p2p-transfer",): name}))
        assert spec.connector == connector
        assert plan(spec, host=HOST).connector == connector
        assert contract(KV_P2P_TRANSFER=name).connector == connector
    with pytest.raises(SpecError, match=r"vllm-disagg knows no KV transfer 'mooncake'.*mori, moriio, nixl"):
        read(entry({**VLLM, ("kv-p2p-transfer",): "mooncake"}))


def test_an_entry_s_policies_and_its_kind_of_load_are_read() -> None:
    spec = asked("PREFILL_ROUTER_POLICY=cache_aware", "DECODE_ROUTER_POLICY=random", "IS_AGENTIC=1")
    launch = plan(spec, host=HOST)
    assert value(launch.process("router"), "--prefill-policy") == "cache_aware"
    assert value(launch.process("router"), "--decode-policy") == "consistent_hash"
    assert "--enable-prefix-caching" in launch.process("decode-0").argv
    assert spec.notices == ()


def test_what_an_entry_says_in_vain_is_one_remark_with_the_reason() -> None:
    spec = asked("RUN_EVAL=true", "ENABLE_METRICS=1", "EVAL_ONLY=false")
    (first, by), (second, _) = spec.notices
    place, _, said = first.partition(": ")
    assert place.startswith("m.yaml:")
    assert said.startswith("RUN_EVAL says 'true', but vllm-disagg does not read it: the client judges answers;")
    assert "/metrics in any case" in second
    assert by.where == place
    assert [each.message for each in plan(spec, host=HOST).warnings if "read it" in each.message] == [first, second]
    atom: LaunchSpec = read(entry(settings_of("decode", "RUN_EVAL=true")))
    assert [text.partition(": ")[2] for text, _ in atom.notices] == [said.replace("vllm", "atom")]


def test_what_another_engine_reads_is_refused_in_an_entry() -> None:
    with pytest.raises(SpecError, match="neither disagg-run nor vllm-disagg with vllm-moriio reads this variable"):
        asked("HICACHE_RATIO=3")


# --- bounds ------------------------------------------------------------------------------------------------------

BOUNDED = [each for each in (*settings.ENGINE, *settings.MORIIO, *settings.NIXL) if each.type in ("int", "float")]


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: setting.name)
def test_no_number_goes_below_or_above_what_it_can_be(setting: Setting) -> None:
    assert setting.minimum is not None
    with pytest.raises(SpecError, match=rf"{setting.name}"):
        contract_of(setting, setting.minimum - 1)
    if setting.name in PORTS:
        assert (setting.minimum, setting.maximum) == (1, 65535)
    if setting.maximum is not None:
        with pytest.raises(SpecError, match=rf"{setting.name}"):
            contract_of(setting, setting.maximum + 1)


def contract_of(setting: Setting, number: float) -> LaunchSpec:
    """The spec in which a setting is a number, said on the command line."""
    connector = "vllm-nixl" if setting in settings.NIXL else "vllm-moriio"
    options = {"engine": "vllm-disagg", "model": "Kimi-K2.5-MXFP4", "connector": connector}
    text = f"{setting.name}={number:g}"
    return read_spec(options={**options, "settings": [text]}, recipe=None, environ={}, host=HOST)
