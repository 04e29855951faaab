"""The page on job-script variables, from options and plugins: ``python -m disagg_run.environmentdocs``.

What it prints is ``docs/environment.md``; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from disagg_run.declarations import Engine, Extension, Setting
from disagg_run.host import Host, build_host
from disagg_run.spec.contract_unread import ELSEWHERE, SUBMITTING, UNREAD
from disagg_run.spec.environment import KV_TRANSFER, UNSET
from disagg_run.spec.option import Option
from disagg_run.spec.options import OPTIONS

HEAD = """\
# Variables of job scripts

Made from the option table, the plugins' settings and `spec/contract_unread.py` by
`python -m disagg_run.environmentdocs > docs/environment.md`: change those, not this page.

AMD's job scripts start one process on each node and tell it by variables what to run. `disagg-run` reads the same
variables, so it can stand where their dispatcher stood:

    ENGINE=… MODEL_NAME=… xP=1 yD=1 IPADDRS=10.0.0.1,10.0.0.2 NODE_RANK=$SLURM_PROCID disagg-run

With `DRY_RUN=1` it prints the plan and starts nothing. Without it, each rank's process plans from these variables,
which are the same on every node, and runs the rank that `NODE_RANK` names; the agents meet at rank 0 and refuse each
other where their plans differ. They need a secret in common: `DISAGG_RUN_TOKEN` in the environment, or `--token-file`.
With `DISAGG_RUN_SIMULATE=1` each starts the stand-ins of its rank, so that a job script can be tried on one machine
with `IPADDRS=127.0.0.1,127.0.0.2`; without `NODE_RANK` one call starts all ranks there.
Where the job script starts the router itself, add `--router external`.

Every variable has an option and a key in a run file; later wins: variables of job scripts < run file or entry of a
master config < `DISAGG_RUN_` variables < command line. A run file beside a variable that says otherwise is a warning.
"""

UNSET_TEXT = """\
For every variable these texts count as not set: {common}. Job scripts export further ones
whatever the user wants; exactly those that a table has in its last column count as not set too.
"""

OTHERS = """\
A variable that is set, and that only plugins of another engine read, is a warning of the plan. What no table has is not
looked at; processes inherit it like any other variable.
"""

Row = Sequence[str]


def environment_page(host: Host) -> str:
    """The whole page as Markdown, ending in one newline."""
    ours = {plugin.name for plugin in host.plugins() if plugin.distribution == "disagg-run"}
    engines = [engine for name, engine in host.engines().items() if name in ours]
    extensions = [each for name, each in host.extensions().items() if name in ours]
    common = ", ".join(f"`{text}`" if text else "the empty text" for text in UNSET)
    parts = [HEAD, UNSET_TEXT.format(common=common), *_core(engines)]
    for engine in engines:
        fitting = [each for each in extensions if each.engines == "all" or engine.name in each.engines]
        parts += _engine(engine, fitting)
    parts += _elsewhere(engines)
    parts += _options()
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _core(engines: Sequence[Engine]) -> Iterator[str]:
    yield "## Read for every engine\n"
    rows = []
    for option in OPTIONS:
        for name in option.contract:
            texts = [f"`{text}`" for text in option.unset_values]
            texts += [f"`{text}` ({engine.name})" for engine in engines for text in engine.contract_unset.get(name, ())]
            rows.append((f"`{name}`", f"`{option.flag}`", f"`{option.key_text}`", option.summary, ", ".join(texts)))
    names = [f"`{word}` = `{to}` ({engine.name})" for engine in engines for word, to in engine.kv_transfers.items()]
    what = f"KV connector, in the engine's word for it: {', '.join(names)}"
    rows.append((f"`{KV_TRANSFER}`", "`--connector`", "`connector`", what, ""))
    yield _table(("variable", "option", "run file", "what", "counts as not set"), rows)


def _engine(engine: Engine, extensions: Iterable[Extension]) -> Iterator[str]:
    yield f"## Read for {engine.name}\n"
    shown: dict[str, tuple[Setting, list[str]]] = {}
    records: tuple[Engine | Extension, ...] = (engine, *extensions)
    for record in records:
        for setting in record.settings:
            if setting.env:
                owners = shown.setdefault(setting.name, (setting, []))[1]
                owners.append("" if record is engine else record.name)
    rows = []
    for setting, owners in shown.values():
        for name, role in sorted(setting.env.items()):
            prefix = f"{role}-" if role else ""
            only = "" if "" in owners else f" ({', '.join(owners)})"
            key = f"{role}.settings.{setting.name}" if role else f"settings.{setting.name}"
            unset = ", ".join(f"`{text}`" for text in setting.unset_values)
            rows.append((f"`{name}`", f"`--{prefix}set {setting.name}=…`", f"`{key}`", setting.summary + only, unset))
    yield _table(("variable", "option", "run file", "what", "counts as not set"), sorted(rows))


def _elsewhere(engines: Iterable[Engine]) -> Iterator[str]:
    yield "## Read by the command line itself\n"
    yield _table(("variable", "what it does"), _rows(ELSEWHERE))
    yield "## Read where a job is sent, not by a plan\n"
    yield _table(("variable", "what it is"), _rows(SUBMITTING))
    yield "## Not read\n"
    yield OTHERS
    rows = _rows(UNREAD)
    rows += [
        (f"`{name}`", f"by {engine.name}: {why}") for engine in engines for name, why in engine.contract_unread.items()
    ]
    yield _table(("variable", "why"), rows)


def _options() -> Iterator[str]:
    yield "## All options\n"
    yield "Each can be given in four ways; `…_NAME` stands for the name of a variable or setting.\n"
    rows = [
        (
            f"`{option.flag}`",
            f"`{option.key_text}`",
            f"`{_own(option)}`",
            ", ".join(f"`{name}`" for name in option.contract),
        )
        for option in OPTIONS
    ]
    yield _table(("option", "run file", "own variable", "variable of job scripts"), rows)


def _own(option: Option) -> str:
    return option.variable + ("_NAME" if option.type in ("env", "settings") else "")


def _rows(known: Mapping[str, str]) -> list[Row]:
    return [(f"`{name}`", why) for name, why in known.items()]


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    print(environment_page(build_host()), end="")
