"""The contract that every engine plugin must keep, as one check that its author runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from disagg_run.catalogue import load_catalogue
from disagg_run.declarations import Engine, ModelRow
from disagg_run.errors import DisaggError
from disagg_run.host import Host, build_host
from disagg_run.testing.contract_plans import Case, plan_violations

Complaints = Iterator[str]


class ContractBroken(AssertionError):
    """An engine does not keep the contract; the message lists everything that is wrong, a line each."""


def check_engine(name: str, *, host: Host | None = None, model: str | None = None) -> None:
    """Check the engine plugin ``name`` by its record and by plans of 1P1D, 2P1D and 1P2D for its models.

    ``host``: where it is found; None = the installed plugins. ``model``: only that model; None = all of its table.
    Raises ContractBroken, an AssertionError, with all that is wrong.
    """
    wrong = contract_violations(name, host=host, model=model)
    if wrong:
        raise ContractBroken(f"engine {name!r} breaks the contract:\n" + "\n".join(f"- {line}" for line in wrong))


def contract_violations(name: str, *, host: Host | None = None, model: str | None = None) -> tuple[str, ...]:
    """What ``check_engine`` finds wrong, a line each; () = nothing."""
    host = build_host() if host is None else host
    try:
        engine = host.engine(name)
        rows = host.models(name)
        host.select(name, None)
    except DisaggError as error:
        return (str(error),)
    wrong = [line for check in _RECORD_CHECKS for line in check(engine)]
    wrong += _documentation(host, name)
    wrong += _model_table(engine, rows)
    if not wrong:
        wrong += plan_violations(Case(host=host, engine=engine, models=_models(engine, rows, model)))
    return tuple(dict.fromkeys(wrong))


def _documentation(host: Host, name: str) -> Complaints:
    plugin = host.implementer(name)
    documented = plugin if inspect.ismodule(plugin) else type(plugin)
    if not documented.__doc__:
        yield f"{documented.__name__} has no docstring: say in one sentence what it plans for"


def _summary(engine: Engine) -> Complaints:
    if not engine.summary.strip() or "\n" in engine.summary:
        yield f"summary is {engine.summary!r}: give one line, `disagg-run engines` shows it"


def _versions(engine: Engine) -> Complaints:
    try:
        if not SpecifierSet(engine.versions).contains(Version(engine.default_version), prereleases=True):
            yield f"default_version {engine.default_version!r} is not in versions {engine.versions!r}"
    except (InvalidSpecifier, InvalidVersion) as error:
        yield f"versions {engine.versions!r} or default_version {engine.default_version!r} cannot be read: {error}"


def _catalogues(engine: Engine) -> Complaints:
    for reference in engine.catalogues:
        try:
            load_catalogue(reference)
        except (DisaggError, OSError, ValueError) as error:
            yield f"the {reference.program} catalogue {reference.file.name} cannot be read: {error}"
    servers = [reference.version for reference in engine.catalogues if reference.program == "server"]
    if servers and engine.default_version not in servers:
        yield (
            f"default_version {engine.default_version!r} has no catalogue of its own (there are {', '.join(servers)}): "
            "an unknown flag would be a warning only"
        )


def _settings(engine: Engine) -> Complaints:
    for setting in engine.settings:
        if not setting.name.isidentifier() or setting.name != setting.name.lower():
            yield f"setting {setting.name!r}: write names in lower case with underscores"
        if not setting.summary.strip():
            yield f"setting {setting.name!r} has no summary"


def _parity(engine: Engine) -> Complaints:
    for shared in engine.parity:
        if not (shared.flag or shared.env or shared.computed):
            yield f"parity {shared.name!r} names no flag or variable that carries it, and no function that computes it"
        if not (callable(shared.why) or shared.why.strip()):
            yield f"parity {shared.name!r} does not say why prefill and decode must agree"


def _told_flags(engine: Engine) -> Complaints:
    """A flag that no server has would never be found in a command, and what is checked by it never refused."""
    told = {"context_flag": engine.context_flag, **{f"setting {each.name!r}": each.flag for each in engine.settings}}
    for reference in engine.catalogues:
        if reference.program != "server" or reference.version != engine.default_version:
            continue
        try:
            catalogue = load_catalogue(reference)
        except (DisaggError, OSError, ValueError):
            continue  # _catalogues tells of it
        for what, name in told.items():
            if name and catalogue.lookup(name) is None:
                yield f"{what} names the flag {name!r}, which {catalogue} does not have"


_RECORD_CHECKS: tuple[Callable[[Engine], Complaints], ...] = (
    _summary,
    _versions,
    _catalogues,
    _settings,
    _parity,
    _told_flags,
)


def _model_table(engine: Engine, rows: tuple[ModelRow, ...]) -> Complaints:
    if not rows and not engine.any_model:
        yield "there is no model in its table: give it one, or any_model=True"
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if (row.name, row.versions) in seen:
            yield f"model {row.name!r} stands twice for versions {row.versions or 'all'}"
        seen.add((row.name, row.versions))
        try:
            SpecifierSet(row.versions)
        except InvalidSpecifier:
            yield f"model {row.name!r} has versions={row.versions!r}, which is no version range"


def _models(engine: Engine, rows: tuple[ModelRow, ...], model: str | None) -> tuple[tuple[str, str], ...]:
    """Each model with a version that it can be planned for: the engine's default, else the highest with a catalogue."""
    known = [engine.default_version]
    known += sorted((each.version for each in engine.catalogues if each.program == "server"), key=Version, reverse=True)
    models: dict[str, str] = {}
    for row in rows:
        fitting = [version for version in known if SpecifierSet(row.versions).contains(version, prereleases=True)]
        if fitting and row.name not in models and model in (None, row.name):
            models[row.name] = fitting[0]
    if not models:
        models[model or "some-model"] = engine.default_version
    return tuple(models.items())
