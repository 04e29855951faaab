"""Keys of JSON flags that only look like those of the plan."""

from __future__ import annotations

import pytest

from disagg_run import FlagError, LaunchPlan, plan
from disagg_run.spec.reading import read_spec
from tests.parity.case import host


def kimi(words: str) -> LaunchPlan:
    options = {"engine": "vllm-disagg", "model": "Kimi-K2.5-MXFP4", "args": [words]}
    return plan(read_spec(options=options, recipe=None, environ={}, host=host()), host=host())


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("kv_connector_extra_config.Read_mode", "kv_connector_extra_config.read_mode"),
        ("kv_connector_extra_config.BACKEND", "kv_connector_extra_config.backend"),
        ("KV-connector-extra-config.read_mode", "kv_connector_extra_config"),
    ],
)
def test_a_key_that_looks_like_one_of_the_plan_is_refused_with_that_one(key: str, meant: str) -> None:
    with pytest.raises(FlagError, match=rf"of --kv-transfer-config of prefill \(.*\) is another key than '{meant}'"):
        kimi(f"--kv-transfer-config.{key} true")


@pytest.mark.parametrize("key", ["read_mode", "host_interface", "readmode"])
def test_the_key_itself_and_one_that_looks_like_none_are_planned(key: str) -> None:
    assert kimi(f"--kv-transfer-config.kv_connector_extra_config.{key} true").ranks
