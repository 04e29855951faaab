"""Reading finished plans in tests: the value of a flag, who set it, all words."""

from __future__ import annotations

from disagg_run import LaunchPlan, PlannedProcess


def value(process: PlannedProcess, flag: str) -> str:
    """The one value of a flag that stands once."""
    assert process.argv.count(flag) == 1, process.argv
    return process.argv[process.argv.index(flag) + 1]


def source(launch: LaunchPlan, process: str, key: str) -> str:
    """Who set a value of a process: ``argv/--tp-size``, ``env/NAME``."""
    assert launch.sources is not None
    for rank in launch.ranks:
        for number, group in enumerate(rank.groups):
            for index, each in enumerate(group.processes):
                if each.name == process:
                    place = f"/ranks/{rank.rank}/groups/{number}/processes/{index}/{key}"
                    return str(launch.sources.values[place][0][0])
    raise AssertionError(process)


def all_words(launch: LaunchPlan) -> list[str]:
    """Every word and value of every process."""
    every = [each for rank in launch.ranks for each in rank.processes()]
    return [word for each in every for word in (*each.argv, *each.env.values())]
