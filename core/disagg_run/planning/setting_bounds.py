"""Bounds of a plugin's settings, held also where the user gives the flag that a setting becomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from disagg_run.catalogue import Catalogue
from disagg_run.declarations import Setting
from disagg_run.errors import FlagError
from disagg_run.flag_meaning import flag_meaning
from disagg_run.flags import MergedFlag
from disagg_run.planning.values import flags_called
from disagg_run.sources import Layer
from disagg_run.spec.values import BadValueError, setting_value


def check_setting_bounds(
    settings: Iterable[Setting], merged: Sequence[MergedFlag], catalogue: Catalogue | None, where: str
) -> None:
    """Refuse what a user gave to a flag outside the bounds of the setting that becomes that flag, or that is no JSON.

    ``where``: role or process. Raises FlagError; what is to be a number and is none is for ``check_flags`` to refuse.
    """
    for setting in settings:
        if setting.flag and setting.type == "json":
            _check_json(setting, merged, catalogue, where)
        if not setting.flag or (setting.minimum is None and setting.maximum is None):
            continue
        for given in flags_called(merged, catalogue, setting.flag):
            number = _number(flag_meaning([given], catalogue))
            if number is None or given.source.layer < Layer.CONTRACT:
                continue
            least, most = setting.minimum, setting.maximum
            # Written so that not-a-number lies outside of all bounds.
            if not ((least is None or number >= least) and (most is None or number <= most)):
                bounds = [f"at least {least:g}"] if least is not None else []
                bounds += [f"at most {most:g}"] if most is not None else []
                raise FlagError(
                    f"{where}: {given.name} is {given.text} ({given.source}), but {' and '.join(bounds)} is allowed",
                    remedy=f"it is the setting {setting.name}, {setting.summary}",
                )


def _check_json(setting: Setting, merged: Sequence[MergedFlag], catalogue: Catalogue | None, where: str) -> None:
    """Refuse text that is no JSON, which a program that takes any text reads only later."""
    for given in flags_called(merged, catalogue, setting.flag):
        if given.json is not None or given.source.layer < Layer.CONTRACT:
            continue
        try:
            setting_value(setting, " ".join(given.values))
        except BadValueError as error:
            raise FlagError(
                f"{where}: {given.name} is {given.text} ({given.source}): {error}",
                remedy=f"it is the setting {setting.name}, {setting.summary}",
            ) from error


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None
