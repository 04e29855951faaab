"""The environment of a process: what the agent has, less what must not reach it, plus what the plan sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disagg_run.planning.document import PlannedProcess

SEPARATOR = ":"

#: Secret of the star; no process of the plan gets it.
TOKEN = "DISAGG_RUN_TOKEN"
#: What every process is told: its node's address (several ranks may share one machine), its run, its name, its rank.
NODE_ADDRESS = "DISAGG_RUN_NODE_ADDRESS"
RUN_ID = "DISAGG_RUN_ID"
PROCESS = "DISAGG_RUN_PROCESS"
RANK = "DISAGG_RUN_RANK"


def process_environment(process: PlannedProcess, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``process`` where the agent has ``inherited``.

    Prepended and appended elements stand around what the plan sets or the agent has, without empty elements: one would
    mean the current directory.
    """
    env = {name: value for name, value in inherited.items() if name != TOKEN and name not in process.unset}
    env.update(process.env)
    for name in (*process.env_prepend, *(each for each in process.env_append if each not in process.env_prepend)):
        words = (*process.env_prepend.get(name, ()), env.get(name, ""), *process.env_append.get(name, ()))
        elements = [element for element in SEPARATOR.join(words).split(SEPARATOR) if element]
        if elements:
            env[name] = SEPARATOR.join(elements)
        else:  # a path that is set and empty means the current directory too
            env.pop(name, None)
    return env


def missing_secrets(process: PlannedProcess, inherited: Mapping[str, str]) -> list[str]:
    """The secrets that ``process`` needs and the agent does not have."""
    return [name for name in process.secrets if not inherited.get(name)]
