"""Everything that disagg-run refuses, as one tree.

    DisaggError                   1   anything below; also raised bare never
    ├── UsageError                2   the command line cannot be understood
    ├── SpecError                 3   what was asked is wrong: option, variable, run file (with its place)
    ├── PluginError               4   a plugin cannot be loaded, or its hook failed (names plugin and hook)
    │   └── ConflictError         4   two providers disagree on one value, or nobody provides it
    ├── PlanError                 5   no right plan exists for this spec
    │   ├── TopologyError         5   workers, nodes and GPUs do not fit
    │   ├── PortError             5   two listeners need one port, or a port cannot be used
    │   ├── FlagError             5   a flag or value that the engine's parser does not take
    │   └── ParityError           5   prefill and decode cannot talk to each other
    ├── PatchError                6   a source patch does not match, or its target changed
    ├── RunError                 10   a run that failed for another reason
    │   ├── ProcessDied          11   a server, router or service exited while it was needed
    │   ├── GateTimeout          12   something did not become ready in its time
    │   ├── PreflightError       13   a node does not have what the plan needs
    │   ├── CanaryError          14   the router is up but no generation gets through it
    │   └── WorkloadError        15   the benchmark failed, or its result is no result
    └── (129 / 130 / 143: ended by SIGHUP / SIGINT / SIGTERM)

A message is one lower-case sentence: what was wrong, where, and then the remedy.
"""

from __future__ import annotations


class DisaggError(Exception):
    """The root of all errors that a user sees as one line; ``exit_code`` is the command's exit code."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message}: {remedy}" if remedy else message)


class UsageError(DisaggError):
    """The command line cannot be understood."""

    exit_code = 2


class SpecError(DisaggError):
    """An option, variable or run-file value is wrong; the message names its place."""

    exit_code = 3


class PluginError(DisaggError):
    """A plugin cannot be loaded, or one of its hooks failed; names plugin and hook."""

    exit_code = 4


class ConflictError(PluginError):
    """Two providers disagree on one value, or none or two answer where exactly one must."""


class PlanError(DisaggError):
    """No right plan exists for this spec."""

    exit_code = 5


class TopologyError(PlanError):
    """Workers, nodes and GPUs do not fit each other."""


class PortError(PlanError):
    """Two listeners need one port, or a port cannot be used."""


class FlagError(PlanError):
    """A flag or a value that the engine's own parser does not take."""


class ParityError(PlanError):
    """Prefill and decode are set so that they cannot exchange KV."""


class PatchError(DisaggError):
    """A source patch does not match its target, or the target changed since."""

    exit_code = 6


class RunError(DisaggError):
    """A run failed."""

    exit_code = 10


class ProcessDied(RunError):
    """A process that was needed exited."""

    exit_code = 11


class GateTimeout(RunError):
    """Something did not become ready in its time; names what never came up."""

    exit_code = 12


class PreflightError(RunError):
    """A node does not have what the plan needs."""

    exit_code = 13


class CanaryError(RunError):
    """The router answers, but no generation gets through it."""

    exit_code = 14


class WorkloadError(RunError):
    """The workload failed or its result is no result."""

    exit_code = 15
