"""The console script: finds the command, and turns every error into one line and an exit code."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from disagg_run import __version__
from disagg_run.cli.asking import GroupedHelp, asking_options
from disagg_run.cli.output import one_line
from disagg_run.errors import DisaggError, UsageError
from disagg_run.input_files import os_reason
from disagg_run.near_miss import did_you_mean
from disagg_run.plain_text import listed
from disagg_run.streams import drop, say

#: Commands: module below ``disagg_run.cli``, its click command, what it does. A module is imported when it is needed.
COMMANDS = {
    "plan": ("plan:command", "make the plan and print it; start nothing"),
    "explain": ("explain:command", "say who set a value of the plan, and what it replaced"),
    "engines": ("engines:command", "list engines and the other plugins, or show one"),
    "models": ("models:command", "list the models that an engine knows"),
    "status": ("status:command", "say what runs in a run directory, or how it ended"),
    "facts": ("facts:command", "say what this node has, as a plan can use it"),
    "catalogue": ("catalogue:command", "take the flags that an installed engine or router knows"),
    "patches": ("patches:command", "list, try, apply and revert source patches of an installed engine"),
    "agent": ("agent:command", "run one rank of a finished plan on this node; launchers start it"),
}

EPILOG = """\b
Every option can also stand in a run file (--recipe) or in a variable: --prefill-tp is
prefill: {tp: …} there, and DISAGG_RUN_PREFILL_TP. Later wins: job-script variables (xP,
IPADDRS, …) < run file < DISAGG_RUN_ variables < command line.

\b
Exit codes: 2 command line, 3 what was asked, 4 plugin, 5 no right plan, 6 patch,
10-15 the run (11 a process died, 12 not ready in time, 13 preflight, 14 no generation
through the router, 15 workload), 129/130/143 ended by HUP, INT or TERM."""


class LazyGroup(GroupedHelp, click.Group):
    """The root command: the bare form launches; a command's module is imported only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(f"disagg_run.cli.{module}"), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names; options before it are refused, since it would not see them."""
        name = args[0]
        if name not in COMMANDS:
            otherwise = f"commands are {', '.join(COMMANDS)}; all else is an option"
            raise UsageError(f"unknown command {name!r}", remedy=did_you_mean(name, COMMANDS) or otherwise)
        before: list[str] = ctx.obj[: len(ctx.obj) - len(args)]
        if before:
            moved = shlex.join(["disagg-run", name, *before])
            raise UsageError(f"options stand before the command {name!r}", remedy=f"put them behind it: {moved}")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        with formatter.section("Commands (disagg-run COMMAND --help)"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
        super().format_options(ctx, formatter)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    params=[*asking_options()],
    epilog=EPILOG,
    options_metavar="[OPTIONS]",
    subcommand_metavar="| COMMAND …",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--dry-run", is_flag=True, help="print the plan and start nothing")
@click.option("--smoke", type=click.IntRange(min=1), metavar="N", help="send N short requests, 8 at a time, then end")
@click.option("--run-dir", metavar="DIR", help="directory for logs and results; default: a new one")
@click.option("--token-file", metavar="FILE", help="secret of the agents' connections, mode 0600; default: a new one")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="run only this rank, here; started on every node")
@click.option("--star", metavar="HOST:PORT", help="with --rank: where rank 0 listens; default: its node, port 21770")
@click.version_option(__version__, prog_name="disagg-run", message="%(prog)s %(version)s")
@click.pass_context
def root(ctx: click.Context, /, **given: Any) -> int:
    """Launch prefill/decode-disaggregated LLM serving over several nodes.

    Without a command: make the plan and launch it.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from disagg_run.cli.launch import launch

    return launch(given)


#: Characters of an error that are shown.
_LONGEST = 3000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except DisaggError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        drop(1)  # the reader has gone (`| head`), which is no error
        return 141
    except OSError as error:
        drop(1)  # a full disk, a file that vanished: the system's own words say what and where
        reason = os_reason(error)
        return _complain(reason if error.filename is None else f"{str(error.filename)!r}: {reason}", 1)


def _complain(message: str, code: int) -> int:
    line = one_line(message)
    if len(line) > _LONGEST:
        # A value of thousands of characters would hide what is wrong with it, and the remedy behind it.
        line = f"{line[: _LONGEST * 2 // 3]} … {line[-_LONGEST // 3 :]}"
    say(f"disagg-run: error: {line}")
    return code


def _run(words: list[str]) -> int:
    try:
        with root.make_context("disagg-run", list(words), obj=words) as ctx:
            result = root.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        sys.stdout.flush()
        return done.exit_code
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        raise usage_error(error, words) from None
    return result if isinstance(result, int) else 0


#: What click calls types, and what it says here.
_CLICKS_WORDS = {
    "is not a valid integer range": "is no whole number",
    "is not a valid integer": "is no whole number",
    "is not a valid float range": "is no number",
    "is not a valid float": "is no number",
}


def usage_error(error: click.ClickException, words: Sequence[str]) -> UsageError:
    """A complaint of click in our words: one lower-case sentence, then the remedy."""
    named = f" {words[0]}" if words and words[0] in COMMANDS else ""
    remedy = f"see disagg-run{named} --help"
    if isinstance(error, click.NoSuchOption):
        meant = did_you_mean(error.option_name, error.possibilities or ())
        if named == " explain":
            hint = f"ask for a flag of the engine without its dashes, {error.option_name.lstrip('-')!r}"
            remedy = f"{meant} {hint}".lstrip()
        elif meant:
            remedy = meant
        others = _commands_with(error.option_name, words)
        if others:
            remedy = f"it is an option of {listed(others, 3)}"
        return UsageError(f"unknown option {error.option_name!r}", remedy=remedy)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return UsageError("a command is missing", remedy=remedy)
    message = one_line(error.format_message()).rstrip(".")
    for theirs, ours in _CLICKS_WORDS.items():
        message = message.replace(theirs, ours)
    return UsageError(message[:1].lower() + message[1:] + _variable(error), remedy=remedy)


def _variable(error: click.ClickException) -> str:
    """The variable that a bad value came from; "" = it was typed."""
    if not isinstance(error, click.BadParameter) or error.param is None or error.ctx is None:
        return ""
    source = error.ctx.get_parameter_source(error.param.name or "")
    return f" (environment variable {error.param.envvar})" if source is ParameterSource.ENVIRONMENT else ""


def _commands_with(option: str, words: Sequence[str]) -> list[str]:
    """The commands that have an option which the one that ``words`` call has not."""
    found = []
    for name in ("", *COMMANDS):
        context = click.Context(root)
        command = root.get_command(context, name) if name else root
        if name != words[0] and any(option in param.opts for param in (command.params if command else ())):
            found.append(f"disagg-run {name or 'without a command'}")
    return found
