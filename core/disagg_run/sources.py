"""Where a value came from: the layers, and the record that every value of a plan carries."""

from __future__ import annotations

import enum

import attrs


class Layer(enum.IntEnum):
    """Who may replace whom: a later layer wins."""

    CORE = 0
    ENGINE = 1
    MODEL = 2
    CONNECTOR = 3
    SITE = 4
    CONTRACT = 5
    #: In place of a run file, never beside one.
    MASTER_CONFIG = 6
    RUN_FILE = 7
    VARIABLE = 8
    COMMAND_LINE = 9
    #: A program that builds a ``LaunchSpec`` itself.
    PROGRAM = 10

    @property
    def label(self) -> str:
        """The layer in the words that messages use."""
        return _LABELS[self]


_LABELS = {
    Layer.CORE: "core default",
    Layer.ENGINE: "engine default",
    Layer.MODEL: "model table",
    Layer.CONNECTOR: "connector",
    Layer.SITE: "site plugin",
    Layer.CONTRACT: "environment contract",
    Layer.MASTER_CONFIG: "master config",
    Layer.RUN_FILE: "run file",
    Layer.VARIABLE: "DISAGG_RUN_ variable",
    Layer.COMMAND_LINE: "command line",
    Layer.PROGRAM: "Python",
}


@attrs.frozen(kw_only=True)
class Source:
    """Who set a value.

    ``str(source)`` is what messages and ``explain`` show, for example
    ``model table models.yaml:41 (plugin toy-disagg)`` or ``run file dsv4.yaml:7``.
    """

    #: The layer, which also says which other sources this one replaces.
    layer: Layer
    #: The plugin that contributed the value; None where no plugin did (command line, run file, core).
    plugin: str | None = None
    #: The place: ``models.yaml:41``, an option name, a variable name; "" where the plugin says all.
    where: str = ""
    #: How a computed value came about, in one clause: ``highest of bench.concurrency``.
    why: str = ""

    def __str__(self) -> str:
        text = self.layer.label
        if self.where:
            text += f" {self.where}"
        if self.plugin:
            text += f" (plugin {self.plugin})"
        if self.why:
            text += f": {self.why}"
        return text


CORE_DEFAULT = Source(layer=Layer.CORE)
