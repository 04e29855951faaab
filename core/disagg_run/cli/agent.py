"""``disagg-run agent``: runs one rank of a finished plan on this node."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from disagg_run.cli.seconds import Seconds


@click.command("agent")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), required=True, help="Plan document (JSON).")
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    required=True,
    envvar="SLURM_PROCID",
    help="Rank of this node in the plan; SLURM_PROCID where it is not given.",
)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run directory; the same for all ranks, or one each.")
@click.option("--run-id", default="", help="Id of the run, for logs and marks.")
@click.option("--star", metavar="HOST:PORT", help="Where rank 0's agent listens; its node's address, port 21770.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="File of mode 0600 with the secret that all agents share."
)
@click.option("--smoke", type=click.IntRange(min=1), metavar="N", help="Send N short completions, then end.")
@click.option("--grace", type=Seconds(0, 3600), metavar="S", help="Seconds from TERM to KILL in an orderly end.")
@click.option("--hang-timeout", type=Seconds(1, 86400), metavar="S", help="Seconds until silence is a hang.")
@click.option("--join-timeout", type=Seconds(1, 86400), metavar="S", help="Seconds for all agents to join.")
def command(plan_file: Path, rank: int, **options: object) -> None:
    """Run one rank of a finished plan on this node.

    Launchers start it; the plan needs no plugin. Exit codes: 0, or that of the first failure anywhere in the launch.
    """
    from disagg_run.running.start import start

    sys.exit(start(plan_file, rank, options))
