"""``disagg-run catalogue``: take a flag catalogue from an installed program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from disagg_run.cli.output import emit, write_file
from disagg_run.cli.seconds import Seconds
from disagg_run.errors import SpecError, UsageError

if TYPE_CHECKING:
    from disagg_run.catalogue import Catalogue
    from disagg_run.declarations import Engine


@click.command("catalogue")
@click.option("--python", required=True, metavar="EXE", help="the interpreter that has the program: VENV/bin/python")
@click.option(
    "--engine", metavar="NAME", help="whose program; default: the one engine whose program is installed there"
)
@click.option("--program", type=click.Choice(["server", "router"]), default="server", help="default: server")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="write it there")
@click.option("--diff", metavar="VERSION", help="print what changed since the engine's catalogue of that version")
@click.option("--as", "version", default="", metavar="VERSION", help="version to state, where none can be found")
@click.option("--timeout", type=Seconds(0.1, 86400), default=180.0, metavar="SECONDS", help="default: 180")
@click.argument("words", nargs=-1)
def command(
    python: str,
    engine: str | None,
    program: Literal["server", "router"],
    output: Path | None,
    diff: str | None,
    version: str,
    timeout: float,
    words: tuple[str, ...],
) -> None:
    """Take the catalogue of flags from an installed engine or router.

    Its own program is called up to its argument parser; nothing is started. The catalogue is printed, or written to
    FILE; with --diff, the changes are printed. WORDS after -- name a program of no plugin: -- @python -m toy.server
    (@python is EXE), or -- toy serve (a script beside EXE).
    """
    from disagg_run.catalogue import Catalogue
    from disagg_run.catalogue_taking import catalogue_text, differences, take_catalogue

    if words and (engine or diff):
        raise UsageError("--engine and --diff do not go with a program of your own", remedy="leave one of them out")
    if words and (words[0] == "@python" and len(words) < (3 if words[1:2] == ("-m",) else 2)):
        raise UsageError("@python needs a module or a file after it", remedy="write -- @python -m MODULE")
    record = None if words else _engine(engine, program, python)
    before = _shipped(record, program, diff) if record and diff else None
    document = take_catalogue(
        python,
        words or (record.parsers[program] if record else ()),
        distributions=record.distributions if record and program == "server" else (),
        version=version,
        timeout_s=timeout,
    )
    text = catalogue_text(document)
    if output is not None:
        write_file(output, text)
    if before is not None:
        changes = differences(before, Catalogue(document, program=program))
        emit("".join(f"{line}\n" for line in changes))
    elif output is None:
        emit(text)


def _engine(name: str | None, program: Literal["server", "router"], python: str) -> Engine:
    """The engine asked for, else the only one whose program the interpreter has."""
    from disagg_run.catalogue_taking import command_text, is_installed
    from disagg_run.host import build_host

    host = build_host()
    if name is not None:
        record = host.engine(name)
        if program not in record.parsers:
            raise SpecError(f"engine {name!r} names no {program} program", remedy="give its words after --")
        return record
    offering = [record for record in host.engines().values() if program in record.parsers]
    found = [record for record in offering if is_installed(python, record.parsers[program])]
    if len(found) == 1:
        return found[0]
    names = ", ".join(repr(record.name) for record in found)
    if found:
        raise SpecError(f"{python!r} has the {program}s of several engines: {names}", remedy="choose one with --engine")
    tried = ", ".join(repr(command_text(record.parsers[program])) for record in offering) or "no engine names one"
    raise SpecError(f"{python!r} has no {program} of a known engine ({tried})", remedy="give its words after --")


def _shipped(engine: Engine, program: str, version: str) -> Catalogue:
    from disagg_run.catalogue import load_catalogue

    mine: list[Any] = [ref for ref in engine.catalogues if ref.program == program]
    for ref in mine:
        if ref.version == version:
            return load_catalogue(ref)
    known = ", ".join(ref.version for ref in mine) or "none"
    raise SpecError(
        f"engine {engine.name!r} has no {program} catalogue of version {version!r}", remedy=f"known: {known}"
    )
