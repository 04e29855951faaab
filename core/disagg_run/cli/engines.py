"""``disagg-run engines``: what is installed, and what one plugin lets users set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from disagg_run.cli.output import emit, json_text
from disagg_run.errors import PluginError
from disagg_run.plain_text import columns

if TYPE_CHECKING:
    from disagg_run.declarations import Engine, Extension, Setting, SharedValue
    from disagg_run.host import Host

_KINDS = {"engine": "engines", "connector": "connectors", "site": "site plugins", "patches": "patch sets"}


@click.command("engines")
@click.argument("name", required=False)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", help="default: table")
def command(name: str | None, form: str) -> None:
    """List engines, connectors, site plugins and patch sets, and those that are broken with the reason.

    With NAME: one plugin, with its settings (--set NAME=VALUE), versions and connectors; an error if it is broken.
    """
    from disagg_run.host import build_host

    host = build_host()
    if name is None:
        found = {
            "plugins": [_summary(host, each) for each in _all(host)],
            "problems": [_problem(p) for p in host.problems()],
        }
        emit(json_text(found) if form == "json" else _listing(found))
    else:
        details = _details(host, _find(host, name))
        emit(json_text(details) if form == "json" else _page(details))


def _all(host: Host) -> Iterator[Engine | Extension]:
    yield from host.engines().values()
    yield from host.extensions().values()


def _find(host: Host, name: str) -> Engine | Extension:
    for record in _all(host):
        if record.name == name:
            return record
    for problem in host.problems():
        if problem.name == name:
            raise PluginError(str(problem), remedy="mend it, or reinstall the distribution that brings it")
    return host.engine(name)


def _kind(record: Engine | Extension) -> str:
    return getattr(record, "kind", "engine")


def _summary(host: Host, record: Engine | Extension) -> dict[str, Any]:
    used = {plugin.name: plugin for plugin in host.plugins()}[record.name]
    summary: dict[str, Any] = {"name": record.name, "kind": _kind(record), "summary": record.summary}
    summary |= {"distribution": used.distribution, "version": used.version}
    if _kind(record) != "engine":
        engines = getattr(record, "engines", ())
        summary["engines"] = engines if engines == "all" else list(engines)
    return summary


def _problem(problem: Any) -> dict[str, str]:
    return {"name": problem.name, "distribution": problem.distribution, "reason": str(problem)}


def _details(host: Host, record: Engine | Extension) -> dict[str, Any]:
    from disagg_run.planning.waivers import checks_of

    details = _summary(host, record)
    if _kind(record) == "engine":
        engine = host.engine(record.name)
        fitting = [each for each in host.extensions().values() if each.engines == "all" or engine.name in each.engines]
        details |= {
            "versions": engine.versions,
            "default_version": engine.default_version,
            "catalogues": [{"program": each.program, "version": each.version} for each in engine.catalogues],
            "multi_node_workers": engine.multi_node_workers,
            "default_connector": engine.default_connector,
            "connectors": [each.name for each in fitting if each.kind == "connector"],
            "patch_sets": [each.name for each in fitting if each.kind == "patches"],
            "models": sorted({row.name for row in host.models(engine.name)}),
        }
    else:
        details["patch_sets"] = list(getattr(record, "patch_sets", ()))
    details["settings"] = [_setting(each) for each in record.settings]
    details["shared"] = [{"name": each.name, "why": _why(each)} for each in record.parity]
    details["checks"] = checks_of(record)
    return details


def _why(shared: SharedValue) -> str:
    return "the plan tells why" if callable(shared.why) else shared.why


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "type": setting.type,
        "summary": setting.summary,
        "choices": list(setting.choices),
        "variables": dict(setting.env),
        "unset_values": list(setting.unset_values),
    }


def _listing(found: dict[str, Any]) -> str:
    blocks = []
    for kind, title in _KINDS.items():
        rows = [
            (each["name"], _brought(each), _for(each) + each["summary"])
            for each in found["plugins"]
            if each["kind"] == kind
        ]
        if rows:
            blocks.append(f"{title}\n{columns(rows, indent='  ')}")
    if found["problems"]:
        blocks.append("broken\n" + "".join(f"  {each['reason']}\n" for each in found["problems"]))
    return "\n".join(blocks) or "no plugin is installed\n"


def _brought(summary: dict[str, Any]) -> str:
    return f"{summary['distribution']} {summary['version']}".strip()


def _for(summary: dict[str, Any]) -> str:
    engines = summary.get("engines")
    if engines is None:
        return ""
    return "for all engines: " if engines == "all" else f"for {', '.join(engines)}: "


def _page(details: dict[str, Any]) -> str:
    rows = [(details["kind"], f"{details['name']} ({_brought(details)})"), ("", _for(details) + details["summary"])]
    if details["kind"] == "engine":
        versions: dict[str, list[str]] = {}
        for each in details["catalogues"]:
            versions.setdefault(each["program"], []).append(each["version"])
        others = [name for name in details["connectors"] if name != details["default_connector"]]
        rows += [
            ("versions", f"{details['versions'] or 'all'}; default {details['default_version']}"),
            *((f"{program} flags", f"known for {', '.join(known)}") for program, known in versions.items()),
            ("workers", "may span nodes" if details["multi_node_workers"] else "each on one node"),
            ("connectors", ", ".join([f"{details['default_connector']} (default)", *others])),
            ("models", ", ".join(details["models"]) or "any"),
        ]
    if details["patch_sets"]:
        rows.append(("patch sets", ", ".join(details["patch_sets"])))
    text = columns(rows)
    if details["settings"]:
        text += "\nsettings (--set NAME=VALUE)\n" + columns(map(_setting_row, details["settings"]), indent="  ")
    if details["shared"]:
        shared = [(each["name"], each["why"]) for each in details["shared"]]
        text += "\nwhat prefill and decode must share (--waive NAME lets a difference through)\n"
        text += columns(shared, indent="  ")
    if details["checks"]:
        text += "\nfurther checks (--waive NAME lets it through)\n" + columns(details["checks"].items(), indent="  ")
    return text


def _setting_row(setting: dict[str, Any]) -> tuple[str, str, str, str]:
    kind = "|".join(map(str, setting["choices"])) or setting["type"]
    return setting["name"], kind, " ".join(setting["variables"]), setting["summary"]
