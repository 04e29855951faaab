"""The two layers that come from the environment: the contract that job scripts know, and ``DISAGG_RUN_*``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from disagg_run.declarations import Engine, Extension, Setting
from disagg_run.errors import SpecError
from disagg_run.near_miss import did_you_mean
from disagg_run.sources import Layer, Source
from disagg_run.spec.layers import AnyAssignment, Assignment, Place, SettingAssignment, assign, env_at
from disagg_run.spec.option import VARIABLE_PREFIX, Option
from disagg_run.spec.options import OPTIONS, by_variable

if TYPE_CHECKING:
    from disagg_run.host import Host

#: Texts of a contract variable that count as not set: job scripts export these whatever the user wants.
UNSET = ("", "none", "false")

#: Contract variable that names who moves KV, in words of the engine's plugin (``Engine.kv_transfers``).
KV_TRANSFER = "KV_P2P_TRANSFER"

#: Run file to read where the command line names none.
RECIPE = VARIABLE_PREFIX + "RECIPE"

#: Variables with our prefix that are no option of a launch: plugins to leave out, the run file, the run's secret, and
#: what a launcher tells its agents and these their processes.
RESERVED = frozenset(
    VARIABLE_PREFIX + name
    for name in (
        "DISABLE",
        "RECIPE",
        "TOKEN",
        "TOKEN_FILE",
        "STAR_FD",
        "LAUNCHER",
        "NODE_ADDRESS",
        "ID",
        "PROCESS",
        "RANK",
    )
)


def place_of(layer: Layer, name: str) -> Place:
    """The place of an environment variable."""
    return Place(source=Source(layer=layer, where=name), text=f"environment variable {name}")


def contract_place(name: str) -> Place:
    """The place of a contract variable that the environment holds."""
    return place_of(Layer.CONTRACT, name)


def contract(
    environ: Mapping[str, str],
    unset_values: Mapping[str, tuple[str, ...]],
    place: Callable[[str], Place] = contract_place,
) -> Iterator[AnyAssignment]:
    """What the contract's variables say of the core's own options.

    ``unset_values``: further texts that count as not set, by variable, from the engine's plugin. ``place``: of a
    variable, for those that do not come from the environment itself.
    """
    for option in sorted(OPTIONS, key=lambda option: -len(option.fields)):
        for name in option.contract:
            text = environ.get(name, "")
            if text in UNSET or text in option.unset_values or text in unset_values.get(name, ()):
                continue
            yield from assign(option, text, place(name))


def contract_connector(
    environ: Mapping[str, str], engine: Engine, place: Callable[[str], Place] = contract_place
) -> Iterator[Assignment]:
    """The connector that the contract's ``KV_P2P_TRANSFER`` names, for engines that know such names.

    Raises SpecError for a name that the engine does not know.
    """
    text, known = environ.get(KV_TRANSFER, ""), engine.kv_transfers
    if text in UNSET or not known:
        return
    where = place(KV_TRANSFER)
    if text not in known:
        raise where.error(
            f"{engine.name} knows no KV transfer {text!r}",
            remedy=f"{did_you_mean(text, known)} it knows {', '.join(sorted(known))}".lstrip(),
        )
    yield Assignment(path=("connector",), type="str", value=known[text], place=where, key="connector", text=text)


def contract_settings(
    environ: Mapping[str, str], settings: Mapping[str, Setting], place: Callable[[str], Place] = contract_place
) -> Iterator[SettingAssignment]:
    """What the contract's variables say of the settings that the launch's plugins declare."""
    for setting in settings.values():
        for name, role in sorted(setting.env.items(), key=lambda item: (item[1] is not None, item[0])):
            text = environ.get(name, "")
            if text in UNSET or text in setting.unset_values:
                continue
            path = ("settings",) if role is None else (role, "settings")
            yield SettingAssignment(path=path, name=setting.name, text=text, place=place(name))


def contract_unread(environ: Mapping[str, str], host: Host, engine: Engine) -> Iterator[tuple[str, Source]]:
    """A remark for each variable that is set, that plugins of other engines read, and none of this one's."""
    fitting = [each for each in host.extensions().values() if each.engines == "all" or engine.name in each.engines]
    own: tuple[Engine | Extension, ...] = (engine, *fitting)
    everyone: tuple[Engine | Extension, ...] = (*host.engines().values(), *host.extensions().values())
    read = {name for record in own for setting in record.settings for name in setting.env}
    read |= {name for option in OPTIONS for name in option.contract}
    unset: dict[str, set[str]] = {}
    for setting in (setting for record in everyone for setting in record.settings):
        for name in setting.env:
            unset.setdefault(name, set()).update(setting.unset_values)
    for name in sorted(unset.keys() - read - engine.contract_unread.keys()):
        text = environ.get(name, "")
        if text not in UNSET and text not in unset[name]:
            place = contract_place(name)
            yield f"{place.text} says {text!r}, but nothing of {engine.name} reads it", place.source


def variables(environ: Mapping[str, str]) -> Iterator[AnyAssignment]:
    """What ``DISAGG_RUN_*`` says; an empty value is not set, except for ``DISAGG_RUN_ENV_NAME``."""
    found = [(name, _option_of(name)) for name in environ if name.startswith(VARIABLE_PREFIX) and name not in RESERVED]
    for name, option in sorted(found, key=lambda item: (-len(item[1].fields), item[0])):
        text = environ[name]
        place = place_of(Layer.VARIABLE, name)
        rest = name.removeprefix(option.variable + "_")
        if option.type == "env":
            yield env_at(option.fields[0], rest, text, place)
        elif not text:
            continue
        elif option.type == "settings":
            yield SettingAssignment(path=option.fields[0], name=rest.lower(), text=text, place=place)
        else:
            yield from assign(option, text, place)


def _option_of(name: str) -> Option:
    known = by_variable()
    option = known.get(name)
    if option is not None and option.type in ("env", "settings"):
        raise SpecError(f"environment variable {name} does not say which", remedy=f"write {name}_NAME=VALUE")
    if option is not None:
        return option
    for option in known.values():
        if option.type in ("env", "settings") and name.startswith(option.variable + "_"):
            return option
    written = [key + "_NAME" if option.type in ("env", "settings") else key for key, option in known.items()]
    meant = did_you_mean(name, [*written, *sorted(RESERVED)])
    raise SpecError(
        f"environment variable {name} is not known",
        remedy=meant or "take it out, or see disagg-run --help for the options",
    )
