"""What prefill and decode must share, and what is let through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from disagg_run import Extension, ParityError, PluginError, RankContext, RoleSpec, SharedValue, hookimpl, plan
from disagg_run.cli.main import main
from disagg_run.sources import Source
from disagg_run.spec.model import Role
from tests.planning.toy import HOST, spec, toy_host


def test_prefill_and_decode_that_differ_are_refused_with_both_values_and_can_be_waived() -> None:
    asked = spec(prefill=RoleSpec(settings={"block_size": 16}), decode=RoleSpec(settings={"block_size": 32}))
    with pytest.raises(ParityError, match=r"block-size is '16' for prefill-0 .* but '32' for decode-0"):
        plan(asked, host=HOST)
    made = plan(attrs.evolve(asked, waive=("block-size",)), host=HOST)
    assert [remark.source for remark in made.waived] == ["block-size"]


def size(ctx: RankContext, role: Role) -> tuple[int | None, Source]:
    return ctx.spec.role(role).tp, ctx.spec.source(f"{role}.tp")


class _Alike:
    """A site that wants what ``function`` computes to be alike for both roles."""

    def __init__(
        self, function: Callable[[RankContext, Role], Any], why: str | Callable[[RankContext], str] = "halves must fit"
    ) -> None:
        self.function = function
        self.why = why

    @hookimpl
    def disagg_plugin(self) -> Extension:
        shared = SharedValue(name="size", computed=self.function, why=self.why)
        return Extension(name="alike", summary="a site", kind="site", parity=[shared])


def test_what_a_plugin_computes_for_each_role_must_be_alike() -> None:
    host = toy_host(_Alike(size))
    assert plan(spec(), host=host).waived == ()
    asked = spec(prefill=RoleSpec(tp=4))
    with pytest.raises(
        ParityError,
        match=r"size is 4 for prefill-0 \(Python LaunchSpec\) but 8 for decode-0 \(core default: .*halves must fit.*",
    ):
        plan(asked, host=host)
    assert plan(attrs.evolve(asked, waive=["size"]), host=host).waived[0].source == "size"


def test_the_reason_may_follow_from_the_plan() -> None:
    def why(ctx: RankContext) -> str:
        return f"{ctx.model.name} has no halves"

    asked = spec(prefill=RoleSpec(tp=4))
    with pytest.raises(ParityError, match=rf"size is 4 .* but 8 .*, and {asked.model} has no halves: make them equal"):
        plan(asked, host=toy_host(_Alike(size, why)))

    def broken(ctx: RankContext) -> str:
        raise KeyError("toy")

    with pytest.raises(PluginError, match=r"broken, which computes size of decode, failed: KeyError\('toy'\)"):
        plan(asked, host=toy_host(_Alike(size, broken)))


def test_a_computation_that_fails_is_a_plugin_error_that_names_it() -> None:
    def broken(ctx: RankContext, role: Role) -> tuple[int, Source]:
        raise KeyError("toy")

    with pytest.raises(PluginError, match=r"broken, which computes size of prefill, failed: KeyError\('toy'\)"):
        plan(spec(), host=toy_host(_Alike(broken)))


def test_a_computation_without_a_source_is_a_plugin_error() -> None:
    def bare(ctx: RankContext, role: Role) -> int | None:
        return ctx.spec.role(role).tp

    with pytest.raises(PluginError, match=r"bare, which computes size of prefill, answers 8: let it answer .* Source"):
        plan(spec(), host=toy_host(_Alike(bare)))


_MINIMAX = ("--engine", "vllm-disagg", "--model", "MiniMax-M3-MXFP4", "--mtp", "3")
_DEEPSEEK = ("--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*_DEEPSEEK, "--decode-tp", "4"), "but 4 for decode-0 (command line --decode-tp)"),
        ((*_DEEPSEEK, "--decode-dp-attention"), "but 1 for decode-0 (command line --decode-dp-attention)"),
        ((*_DEEPSEEK, "--decode-set", "mooncake_protocol=tcp"), "but 'tcp' for decode-0 (command line --decode-set)"),
        (
            (*_MINIMAX, "--decode-args", "--speculative-config.num_speculative_tokens 4"),
            "for decode-0 (command line --decode-args)",
        ),
    ],
)
def test_each_side_names_the_option_that_set_what_differs(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    assert main(["plan", *words]) == ParityError.exit_code
    assert told in capsys.readouterr().err
