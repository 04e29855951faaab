"""Secrets that are given as values: they stand in no plan, and in no message."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import DisaggError, LaunchPlan, ProcessSpec, RoleSpec
from disagg_run.planning.secret_values import is_secret
from disagg_run.spec.model import RouterSpec
from tests.engine_plans import PLANNED, typed

ENGINES = sorted(PLANNED)
SECRET = "hf_do_not_tell"


def message(engine: str, **fields: Any) -> str:
    """Why such a plan is refused: one line without the secret."""
    with pytest.raises(DisaggError) as caught:
        PLANNED[engine](**fields)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def texts(launch: LaunchPlan) -> str:
    """All that is written of a plan, with who set what."""
    assert launch.sources is not None
    return launch.to_json() + str(launch.sources.values)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_secret_that_is_given_a_value_too_is_refused(engine: str) -> None:
    for fields in (
        {"env": {"SITE_LOGIN": SECRET}},
        {"decode": RoleSpec(env={"SITE_LOGIN": SECRET})},
        {"router": RouterSpec(env={"SITE_LOGIN": SECRET})},
        {"processes": {"decode-0": ProcessSpec(env={"SITE_LOGIN": SECRET})}},
    ):
        said = message(engine, secrets=["SITE_LOGIN"], waive=["plain-secrets"], **fields)
        assert " is given a value (Python LaunchSpec), but it is a secret (Python LaunchSpec)" in said
        assert said.endswith("leave one of them out: a secret is what the environment of each node's agent holds")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_value_that_looks_like_a_secret_is_refused_with_the_way_to_pass_it(engine: str) -> None:
    said = message(engine, env={"HF_TOKEN": SECRET})
    assert said == (
        "the value of HF_TOKEN of prefill-0 (Python LaunchSpec) looks like a secret, and would stand in the plan:"
        " set it where the agents run and pass it on by --secret HF_TOKEN, or let it through with --waive plain-secrets"
    )
    launch = PLANNED[engine](secrets=["HF_TOKEN"])
    assert launch.process("decode-0").secrets == ("HF_TOKEN",)
    assert SECRET not in texts(launch)
    assert SECRET in texts(PLANNED[engine](env={"HF_TOKEN": SECRET}, waive=["plain-secrets"]))


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        ("vllm", {"args": [typed("--hf-token", SECRET)]}),
        ("vllm", {"args": [typed("--api-key", SECRET)]}),
        ("vllm", {"env": {"VLLM_API_KEY": SECRET}}),
        ("atom", {"router": RouterSpec(args=[typed("--api-key", SECRET)])}),
        ("sglang", {"args": [typed("--api-key", SECRET)]}),
        ("sglang", {"args": [typed("--ssl-keyfile-password", SECRET)], "engine_version": "0.5.23"}),
        ("sglang", {"router": RouterSpec(args=[typed("--api-key", SECRET)])}),
    ],
)
def test_a_refused_flag_or_variable_does_not_show_the_secret(engine: str, fields: dict[str, Any]) -> None:
    assert "secret" in message(engine, **fields)


def test_names_that_only_have_such_a_word_in_them_and_harmless_values_pass() -> None:
    names = ["HF_TOKEN", "TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password", "--hf-token", "--api-key"]
    assert all(map(is_secret, names))
    others = ["MAX_TOKENS", "HF_TOKEN_PATH", "TOKENIZERS_PARALLELISM", "SECRETS_DIR", "MONKEY", "--ssl-keyfile"]
    assert not any(map(is_secret, others))
    harmless = {"OPENAI_API_KEY": "EMPTY", "BYTES_PER_TOKEN": "8", "HF_TOKEN": "", "SITE_TOKEN": "/run/secrets/token"}
    for engine in ENGINES:
        assert PLANNED[engine](env=harmless).process("decode-0").env.items() >= harmless.items()
