"""Every engine that is installed here: the contract test, and a plan of every model with the newest catalogue."""

from __future__ import annotations

import itertools

import pytest
from packaging.version import Version

from disagg_run import Host, LaunchSpec, RoleSpec, build_host, plan
from disagg_run.testing import check_engine

HOST = build_host()
SHAPES = [(1, 1), (2, 1), (1, 2)]
#: A discovery port that engine and router share by default lies in the ephemeral range, and the plan says so.
EXPECTED = "lies in the kernel's ephemeral range"


def cases(host: Host) -> list[tuple[str, str, int, int]]:
    return [
        (engine, model, prefill, decode)
        for engine in host.engines()
        for model in sorted({row.name for row in host.models(engine)})
        for prefill, decode in SHAPES
    ]


def newest(engine: str) -> str:
    refs = HOST.engine(engine).catalogues
    return max((ref.version for ref in refs if ref.program == "server"), key=Version)


def test_the_three_engines_are_installed_like_anyones() -> None:
    assert set(HOST.engines()) >= {"atom-disagg", "sglang-disagg", "vllm-disagg"}
    assert not HOST.problems()


@pytest.mark.parametrize("engine", sorted(HOST.engines()))
def test_an_engine_keeps_the_contract(engine: str) -> None:
    check_engine(engine, host=HOST)


@pytest.mark.parametrize(("engine", "model", "prefill", "decode"), cases(HOST))
def test_every_model_is_planned_without_an_unknown_flag_or_a_bad_value(
    engine: str, model: str, prefill: int, decode: int
) -> None:
    for dp_attention, experts in itertools.product((False, True), repeat=2):
        role = {"dp_attention": dp_attention, "expert_parallel": experts}
        spec = LaunchSpec(
            engine=engine,
            model=model,
            engine_version=newest(engine),
            prefill=RoleSpec(workers=prefill, **role),  # type: ignore[arg-type]
            decode=RoleSpec(workers=decode, **role),  # type: ignore[arg-type]
        )
        made = plan(spec, host=HOST)
        assert [remark.message for remark in made.warnings if EXPECTED not in remark.message] == []
