"""``disagg-run explain``: who set a value of the plan, and what it replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from disagg_run.cli.asking import GroupedHelp, asking_options
from disagg_run.cli.output import emit, json_text, one_line
from disagg_run.cli.plan import plan_asked
from disagg_run.errors import DisaggError
from disagg_run.streams import say

if TYPE_CHECKING:
    from disagg_run.explain import Explanation


@click.command("explain", cls=GroupedHelp, params=[*asking_options()])
@click.argument("queries", metavar="QUERY…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--process", metavar="NAME", help="only this process or role: decode-0, prefill")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="default: text")
def command(queries: tuple[str, ...], process: str | None, form: str, **given: Any) -> None:
    """Say who set a value of the plan, and what it replaced.

    QUERY: a flag without its dashes (or behind --), a key of a JSON flag (kv-config.kv_role), a variable, a
    port's listener (http), after, ready, gpus, a patch, engine, engine_version, connector, model. prefill: or
    decode-0: before it narrows it.
    """
    from disagg_run.explain import explain, render_explanations
    from disagg_run.host import build_host

    host = build_host()
    _, plan = plan_asked(given, host=host)
    catalogues = host.engine(plan.engine).catalogues
    found: list[Explanation] = []
    wrong: list[DisaggError] = []
    for query in queries:
        try:
            found += explain(plan, query, process=process, catalogues=catalogues)
        except DisaggError as error:
            wrong.append(error)  # the other questions have answers all the same
    if found or not wrong:
        emit(render_explanations(found) if form == "text" else _document(found))
    for each in wrong[:-1]:
        say(f"disagg-run: error: {one_line(str(each))}")
    if wrong:
        raise wrong[-1]


def _document(found: Iterable[Explanation]) -> str:
    """The answers as JSON."""
    answers = [
        {
            "name": each.name,
            "value": each.value,
            "processes": list(each.processes),
            "source": str(each.source) if each.source else None,
            "replaced": [{"value": text, "source": str(source)} for source, text in each.replaced],
        }
        for each in found
    ]
    return json_text(answers)
