"""Requests of the load against the context length of the servers, where a command tells it."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_run.catalogue import Catalogue
from disagg_run.declarations import Engine
from disagg_run.errors import PlanError
from disagg_run.flag_meaning import flag_meaning
from disagg_run.flags import MergedFlag
from disagg_run.planning.values import flags_called
from disagg_run.sources import Layer
from disagg_run.spec.model import LaunchSpec

#: Waiver of the check.
LOAD_CHECK = "load-length"


def check_load(
    spec: LaunchSpec,
    engine: Engine,
    servers: Iterable[tuple[str, tuple[MergedFlag, ...]]],
    catalogue: Catalogue | None,
) -> None:
    """Refuse a load whose longest requests are longer than the context length of one of the ``servers``.

    ``servers``: name and finished flags of each. A load that nobody named is none; a context length that no flag tells
    is the model's, which the plan does not know. Raises PlanError with the sources of all lengths.
    """
    said = {name: spec.source(f"bench.{name}_len") for name in ("input", "output")}
    if LOAD_CHECK in spec.waive or not engine.context_flag or all(each.layer is Layer.CORE for each in said.values()):
        return
    prompt, completion = spec.bench.input_len, spec.bench.output_len
    for process, flags in servers:
        given = tuple(flags_called(flags, catalogue, engine.context_flag))
        length = flag_meaning(given, catalogue)
        # A text that no catalogue says the kind of is a number all the same where it reads as one.
        if isinstance(length, str) and length.isascii() and length.isdigit():
            length = int(length)
        if isinstance(length, int) and 0 < length < prompt + completion:
            raise PlanError(
                f"requests of {prompt} ({said['input']}) and {completion} ({said['output']}) tokens are longer than the"
                f" {length} that {process} takes ({given[0].name}, {given[0].source})",
                remedy=f"ask for shorter ones with --isl and --osl, for a longer context, or --waive {LOAD_CHECK}",
            )
