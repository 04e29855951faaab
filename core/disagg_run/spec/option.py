"""What one option is: where it can be written, how its text is read, which fields of ``LaunchSpec`` it sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs

from disagg_run.spec.model import as_tuple

#: Where a value stands in ``LaunchSpec``: ``("prefill", "tp")``.
Path = tuple[str, ...]

#: How an option's text is read (``spec.values``), and how layers meet: ``args`` and ``simulation`` accumulate,
#: ``names`` unite, ``env`` and ``settings`` merge by name, everything else is replaced.
Type = Literal[
    "int", "float", "bool", "str", "list", "sizes", "rate", "nodes", "args", "names", "env", "settings", "simulation"
]
#: What a text, or each text of a list, must look like beside its type.
Form = Literal["", "image", "device", "mount", "path", "secret", "version"]
#: Types that may stand several times on a command line.
REPEATABLE: tuple[Type, ...] = ("args", "names", "env", "settings", "simulation")

VARIABLE_PREFIX = "DISAGG_RUN_"


def _path(text: str) -> Path:
    return tuple(text.split("."))


def _paths(texts: Iterable[str]) -> tuple[Path, ...]:
    return tuple(_path(text) for text in texts)


@attrs.frozen(kw_only=True)
class Option:
    """One thing that can be asked. Option, variable and field names follow from the run-file key unless given."""

    #: Key path in a run file: ``("prefill", "dp-attention")``, written ``prefill.dp-attention``.
    key: Path = attrs.field(converter=_path)
    #: What it is, in one line, with the unit.
    summary: str
    #: Heading in ``--help``.
    group: str
    type: Type = "str"
    #: Command-line option; a switch has ``--no-…`` too.
    flag: str = attrs.field()
    #: Further names on the command line.
    aliases: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Fields of ``LaunchSpec`` that it sets; two where it stands for both roles.
    fields: tuple[Path, ...] = attrs.field(converter=_paths)
    metavar: str | None = None
    choices: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    form: Form = ""
    #: Least and greatest value of a number.
    minimum: float | None = None
    maximum: float | None = None
    #: Variables of the environment contract that set it.
    contract: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Exact texts of those variables that count as not set, beside those that do for all.
    unset_values: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)

    @flag.default
    def _default_flag(self) -> str:
        return "--" + "-".join(self.key)

    @fields.default
    def _default_fields(self) -> tuple[str, ...]:
        return (self.key_text.replace("-", "_"),)

    @property
    def key_text(self) -> str:
        """The run-file key as messages write it."""
        return ".".join(self.key)

    @property
    def variable(self) -> str:
        """Its own variable: ``DISAGG_RUN_PREFILL_TP``; for env and settings what stands before ``_NAME``."""
        return VARIABLE_PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def dotted(self) -> str:
        """The name by which ``read_spec`` takes it: the field's dotted path, or the bare name for both roles."""
        return ".".join(self.fields[0]) if len(self.fields) == 1 else self.fields[0][-1]
