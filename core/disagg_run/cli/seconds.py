"""Times on the command line: finite numbers of seconds within bounds."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A number of seconds between two bounds, both included; unlike click's ranges it takes no ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; click's complaint where it is none, or not within the bounds."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (self.min or 0) <= seconds <= (self.max or math.inf):  # also where it is not a number
            self.fail(f"{value!r} is no number of seconds from {self.min:g} to {self.max:g}", param, ctx)
        return seconds
