"""The hook reference, made from the specifications and records themselves: ``python -m disagg_run.hookdocs``.

What it prints is ``docs/hooks.md``; a test compares the two.
"""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from disagg_run import (
    addresses,
    context,
    declarations,
    facts,
    gpus,
    hookspecs,
    model_files,
    node_needs,
    option_flags,
    patch_records,
    rdma,
    records,
    releases,
    roles,
    settable_ports,
    sources,
)
from disagg_run.spec import model

HEAD = """\
# Hooks

Made from `hookspecs.py` and the modules of its records by `python -m disagg_run.hookdocs > docs/hooks.md`: change
those, not this page. A first plugin, step by step, is in [writing-a-plugin.md](writing-a-plugin.md).
"""

#: Chapters of records: title, opening words, module.
CHAPTERS = (
    ("Contexts: what a hook is given", context),
    ("Declarations: what a plugin says of itself", declarations),
    ("Records: what a plugin's hooks return", records),
    ("Source patches: records that hooks return", patch_records),
    ("What every engine asks of a node: functions to call", node_needs),
    ("Where a model lies: functions to call", model_files),
    ("GPUs that a server sees: functions to call", gpus),
    ("RDMA devices: functions to call", rdma),
    ("What a role's sizes come to: functions to call", roles),
    ("Releases: functions to call", releases),
    ("Ports that a user may fix: functions to call", settable_ports),
    ("Flags and variables that follow from the plan: functions to call", option_flags),
    ("Addresses of nodes: functions to call", addresses),
    ("Node facts", facts),
    ("What was asked", model),
    ("Sources", sources),
)

_STAGE = re.compile(r"# --- (.+?) -+$")
_FIELD = re.compile(r"    (\w+): ")


def hook_reference() -> str:
    """The whole page as Markdown, ending in one newline."""
    parts = [HEAD, _prose(inspect.getdoc(hookspecs) or ""), _overview()]
    parts += _hooks()
    for title, module in CHAPTERS:
        parts.append(f"## {title}\n")
        parts += [_entry(item) for item in _public(module)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _specifications() -> Iterator[tuple[str, str, Any]]:
    """Stage, name and function of each hook, in the order of the file, which is the order of calling."""
    stage = ""
    for line in inspect.getsource(hookspecs).splitlines():
        heading = _STAGE.match(line)
        stage = heading[1] if heading else stage
        named = re.match(r"def (disagg_\w+)\(", line)
        if named:
            yield stage, named[1], getattr(hookspecs, named[1])


def _overview() -> str:
    rows = ["| hook | called | returns |", "|---|---|---|"]
    for _, name, function in _specifications():
        called = re.search(r"Called ([^.]+)\.", _ticks(_flat(inspect.getdoc(function) or "")))
        returned = str(inspect.signature(function).return_annotation)
        rows.append(f"| [`{name}`](#{name}) | {called[1] if called else ''} | `{_cell(returned)}` |")
    return "\n".join(rows)


def _hooks() -> Iterator[str]:
    written = ""
    for stage, name, function in _specifications():
        if stage != written:
            yield f"## Hooks: {stage}\n"
            written = stage
        yield f"### {name}\n"
        yield f"```python\ndef {name}{_signature(function)}\n```\n"
        yield _prose(inspect.getdoc(function) or "")


def _public(module: Any) -> Iterator[Any]:
    """Classes and functions of a module that are its own, documented and public, in the order of its file."""
    for name, found in vars(module).items():
        item = inspect.unwrap(found) if callable(found) else found  # what is cached is no function to inspect
        own = getattr(item, "__module__", "") == module.__name__
        if own and not name.startswith("_") and (inspect.isclass(item) or inspect.isfunction(item)):
            if item in (model.frozen_map, model.as_tuple):
                continue
            yield item


def _entry(item: Any) -> str:
    lines = [f"### {item.__name__}\n"]
    if inspect.isfunction(item):
        lines.append(f"```python\ndef {item.__name__}{_signature(item)}\n```\n")
    lines.append(_prose(inspect.getdoc(item) or ""))
    if inspect.isclass(item) and issubclass(item, enum.Enum):
        members = "\n".join(f"| `{member.name}` | `{member.value}` |" for member in item)
        lines.append(f"| member | value |\n|---|---|\n{members}\n")
    elif attrs.has(item):
        lines.append(_fields(item))
    if inspect.isclass(item):
        lines += list(_members(item))
    return "\n".join(line for line in lines if line)


def _fields(record: type) -> str:
    comments = field_comments(record)
    inherited = [each.__name__ for each in record.__bases__ if attrs.has(each)]
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in attrs.fields(record):
        if not field.inherited and not field.name.startswith("_"):
            default = f"`{_cell(_default(field))}`" if field.default is not attrs.NOTHING else ""
            meaning = _cell(_ticks(comments.get(field.name, "")))
            # As written: a reader of plans resolves field.type in place.
            kind = record.__annotations__.get(field.name, field.type)
            rows.append(f"| `{field.name}` | `{_cell(str(kind))}` | {default} | {meaning} |")
    lead = f"All fields of {', '.join(f'`{name}`' for name in inherited)}, and:\n\n" if inherited else ""
    return lead + "\n".join(rows) + "\n"


def _default(field: attrs.Attribute[Any]) -> str:
    value: Any = field.default
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        return "…" if value.takes_self else _shown(value.factory())
    return _shown(value)


def _shown(value: Any) -> str:
    """A default as a plugin author would write it; a record by the fields that it cannot do without."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if not attrs.has(type(value)):
        return repr(value)
    needed = [field.name for field in attrs.fields(type(value)) if field.default is attrs.NOTHING]
    given = ", ".join(f"{name}={_shown(getattr(value, name))}" for name in needed)
    return f"{type(value).__name__}({given})"


def field_comments(record: type) -> dict[str, str]:
    """The ``#:`` comment above each field of a class, joined to one line."""
    comments: dict[str, str] = {}
    waiting: list[str] = []
    for line in inspect.getsource(record).splitlines():
        if line.startswith("    #:"):
            waiting.append(line[6:].strip())
            continue
        named = _FIELD.match(line)
        if named and waiting:
            comments[named[1]] = " ".join(waiting)
        waiting = []
    return comments


def _members(owner: type) -> Iterable[str]:
    for name, member in vars(owner).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = f"{name}{_signature(function)}" if function is member else name
        yield f"- `{shown}`: {_ticks(_flat(inspect.getdoc(function) or ''))}"


def _signature(function: Any) -> str:
    shown = re.sub(r"\(self(, )?", "(", str(inspect.signature(function)))
    # Annotations are text here (`from __future__ import annotations`), which Python shows in quotes.
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)


def _prose(text: str) -> str:
    """A docstring as Markdown: indented blocks become code, double back-quotes single ones."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("    "):
            lines.append(f"```python\n{textwrap.dedent(paragraph)}\n```\n")
        else:
            # A line that opens with an argument's name or `Returns:` starts a paragraph of its own.
            opened = re.sub(r"\n(?=``\w+``:|Returns:|Raises )", "\n\n", paragraph)
            lines.append(f"{_ticks(opened)}\n")
    return "\n".join(lines)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _ticks(text: str) -> str:
    return text.replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(hook_reference(), end="")
