"""Plans of each first-party engine by one name, and words given by hand."""

from __future__ import annotations

from collections.abc import Callable

from disagg_run import ArgText, LaunchPlan, Layer, Source
from tests import atom_plans, sglang_plans, vllm_plans

#: ``planned`` of each engine's own module: prefill and decode on 10.0.0.1 and 10.0.0.2.
PLANNED: dict[str, Callable[..., LaunchPlan]] = {
    "sglang": sglang_plans.planned,
    "vllm": vllm_plans.planned,
    "atom": atom_plans.planned,
}
#: As high as the spec of a program, which these plans are made of: what is given by hand stands beside it.
TYPED = Source(layer=Layer.PROGRAM, where="--args")


def typed(*words: str) -> ArgText:
    """Words of ``--args``."""
    return ArgText(words=words, source=TYPED)
