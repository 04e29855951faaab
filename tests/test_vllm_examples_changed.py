"""The run files of vLLM in ``examples/`` that change what a launch is by hand: overrides and patches."""

from __future__ import annotations

from tests.example_plans import planned
from tests.plan_values import source, value
from tests.test_vllm_examples import OVERRIDES, PATCHED
from tests.vllm_plans import transfer


def test_the_narrower_override_wins_and_says_where_it_stands() -> None:
    launch = planned(OVERRIDES)
    prefill, first, second = (launch.process(name) for name in ("prefill-0", "decode-0", "decode-1"))
    assert [process.env["VLLM_LOGGING_LEVEL"] for process in (prefill, first, second)] == ["INFO", "WARNING", "DEBUG"]
    assert [value(process, "--max-num-seqs") for process in (prefill, first, second)] == ["64", "256", "256"]
    assert [value(process, "--gpu-memory-utilization") for process in (prefill, first)] == ["0.90", "0.95"]
    assert [("--enforce-eager" in process.argv) for process in (prefill, first, second)] == [False, False, True]
    for process in (prefill, first, second):
        assert value(process, "--max-model-len") == "64K"
        config = transfer(process)
        # What the launcher depends on stays beside the key that was added.
        assert (config["recv_abort_timeout"], config["proxy_ping_port"]) == (120, "26367")
    assert (value(launch.process("router"), "--max-concurrent-requests")) == "4096"
    assert launch.process("router").env["RUST_BACKTRACE"] == "1"
    for process, key in (
        ("prefill-0", "argv/--max-num-seqs"),
        ("decode-0", "argv/--gpu-memory-utilization"),
        ("decode-1", "argv/--enforce-eager"),
        ("decode-1", "env/VLLM_LOGGING_LEVEL"),
        ("router", "argv/--max-concurrent-requests"),
    ):
        assert f"{OVERRIDES}.yaml:" in source(launch, process, key)


def test_moriio_s_waits_are_bounded_by_patches_or_from_0_23_by_settings() -> None:
    old, new = planned(PATCHED), planned(PATCHED, engine_version="0.32.0")
    assert new.warnings == ()
    patches = [patch.id for patch in old.ranks[1].groups[0].patches]
    assert {"moriio-save-kv-timeout", "moriio-load-kv-timeout", "moriio-transfer-timeout"} <= set(patches)
    decode = old.process("decode-0")
    assert decode.env["DISAGG_MORIIO_TRANSFER_TIMEOUT_S"] == "45"
    assert decode.env["DISAGG_MORIIO_DEFER_TIMEOUT_S"] == "120"
    assert "transfer_timeout" not in transfer(decode)
    config = transfer(new.process("decode-0"))
    assert (config["transfer_timeout"], config["defer_timeout"]) == (45, 120)
    key = "argv/--kv-transfer-config/kv_connector_extra_config.transfer_timeout"
    assert f"{PATCHED}.yaml:" in source(new, "decode-0", key)
