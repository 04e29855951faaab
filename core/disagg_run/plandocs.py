"""The page of the plan document, made from its records: ``python -m disagg_run.plandocs``.

What it prints is ``docs/plan.md``; a test compares the two.
"""

from __future__ import annotations

import inspect
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

import attrs

from disagg_run.hookdocs import field_comments
from disagg_run.planning.document import LaunchPlan
from disagg_run.planning.provenance import SCHEMA, SourceTable

HEAD = f"""\
# The plan document

Made from the plan's own records by `python -m disagg_run.plandocs > docs/plan.md`: change those, not this page.

`disagg-run plan --format json` prints it, `LaunchPlan.to_json()` gives it and `LaunchPlan.from_json()` reads it back.
It is one JSON object. `schema` is {SCHEMA}; `digest` is `sha256:` of the document without the digest itself, its keys
sorted and no blanks between them. The same inputs give the same bytes, and an unknown key is refused when it is read.
What is marked "if any" is left out where it is empty or false. Secrets stand by name only. Records that have no part
here (`ContainerNeeds`, `Patch`, `Preflight`) are in [hooks.md](hooks.md): their fields are the keys. A `Node`
has a `name` ("" = only the address is known) and an `address`.
"""

#: Fields of the record that are not keys of the document.
_APART = {"sources"}


def plan_reference() -> str:
    """The whole page as Markdown, ending in one newline."""
    return "\n".join([HEAD, *(_entry(record) for record in records_of(LaunchPlan)), _sources()])


def records_of(record: type, found: dict[type, None] | None = None) -> tuple[type, ...]:
    """A record and all of the document's own that it holds, each once, in the order in which a reader meets them."""
    found = {} if found is None else found
    found[record] = None
    hints = typing.get_type_hints(record)
    for field in document_fields(record):
        for each in _named(hints[field.name]):
            if each not in found and each.__module__ == record.__module__:
                records_of(each, found)
    return tuple(found)


def document_fields(record: type) -> tuple[attrs.Attribute[Any], ...]:
    """The fields of a record that are keys of the document."""
    return tuple(field for field in attrs.fields(record) if field.name not in _APART)


def _named(hint: Any) -> Iterator[type]:
    """The records within a type: of a list, a mapping, or what may be absent."""
    if inspect.isclass(hint) and attrs.has(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _named(part)


def _entry(record: type) -> str:
    comments = field_comments(record)
    lines = [f"## {record.__name__}\n", f"{_plain(inspect.getdoc(record) or '')}\n"]
    lines += ["| key | type | meaning |", "|---|---|---|"]
    for field in document_fields(record):
        kind = str(record.__annotations__.get(field.name, field.type))
        if field.metadata.get("omit_empty"):
            kind += ", if any"
        lines.append(f"| `{field.name}` | {_plain(kind)} | {_plain(comments.get(field.name, ''))} |")
    return "\n".join(lines) + "\n"


def _sources() -> str:
    meaning = textwrap.fill(_plain(field_comments(SourceTable)["values"]), 120, break_on_hyphens=False)
    return f"""\
## Who set which value

`disagg-run plan --sources FILE` writes a second document: `schema` and `digest` of the plan, `sources`, a list of
texts, and `values`. A value of `values` is a list of pairs: index into `sources`, and the text that this source gave.
The winner stands first, then what it replaced. Its key:
{meaning}
"""


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    print(plan_reference(), end="")
