"""Variables of finished processes that choose devices: which GPUs each sees, names that mean more devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from disagg_run.context import Process, ProcessContext, RankContext
from disagg_run.errors import SpecError
from disagg_run.gpu_lists import listed_gpus, same_gpu
from disagg_run.gpus import VISIBILITY, VISIBILITY_CHECK
from disagg_run.plain_text import listed
from disagg_run.planning.environment import MergedEnv
from disagg_run.rdma import COLLECTIVE_DEVICES, further_matches
from disagg_run.sources import CORE_DEFAULT, Source

_WAIVE = f"or let it through with --waive {VISIBILITY_CHECK}"


@attrs.frozen(kw_only=True)
class SeenGpus:
    """The GPUs that one process sees, by index or UUID, and what says so."""

    process: str
    gpus: tuple[str, ...]
    #: Variable that chooses them; "" = none does, they are those that the plan gives it.
    variable: str = ""
    value: str = ""
    source: Source = CORE_DEFAULT

    @property
    def said(self) -> str:
        """``HIP_VISIBLE_DEVICES='0,1' (command line --env)``, or the GPUs of the plan."""
        if not self.variable:
            return f"GPUs {','.join(self.gpus)} (by the plan)"
        return f"{self.variable}={self.value!r} ({self.source})"

    def told(self, process: Process) -> Process:
        """The process with the GPUs that a variable by hand chooses for it, where those are indexes."""
        if not (self.variable and self.gpus and self.gpus[0].isdigit()):
            return process
        gpus = tuple(map(int, self.gpus))
        return process if gpus == process.gpus else attrs.evolve(process, gpus=gpus)


def seen_gpus(env: MergedEnv, ctx: ProcessContext) -> SeenGpus:
    """Which GPUs a server sees, held against those that the plan gives it.

    Raises SpecError for two variables that both choose, and for a list that cannot be read, has another length or names
    GPUs that the node does not have; nothing is refused where the check is waived.
    """
    planned = SeenGpus(process=ctx.process.name, gpus=tuple(map(str, ctx.process.gpus)))
    chosen = [name for name in VISIBILITY if name in env.env]
    if ctx.process.kind != "server" or VISIBILITY_CHECK in ctx.spec.waive:
        return planned
    _check_one(chosen, env, ctx)
    if not chosen:
        return planned
    name = chosen[0]
    seen = SeenGpus(
        process=ctx.process.name,
        gpus=planned.gpus,
        variable=name,
        value=env.env[name],
        source=env.provenance[f"env/{name}"][0][0],
    )
    return attrs.evolve(seen, gpus=_read(seen, ctx)) if ctx.process.gpus and not env.no_gpus else seen


def _check_one(chosen: Sequence[str], env: MergedEnv, ctx: ProcessContext) -> None:
    """Refuse two variables: the second counts in what the first has left, and finds none; and one that nobody sees."""
    for name in VISIBILITY:
        if name in env.secrets:
            raise SpecError(
                f"{name} of {ctx.process.name} is a secret ({env.provenance[f'secrets/{name}'][0][0]}), so that nobody"
                " sees which GPUs it chooses",
                remedy=f"leave it out or give it by --env, {_WAIVE}",
            )
    if len(chosen) < 2:
        return
    said = " and ".join(f"{name}={env.env[name]} ({env.provenance[f'env/{name}'][0][0]})" for name in chosen)
    raise SpecError(
        f"{ctx.process.name} is given {said}, of which the second counts in what the first has left",
        remedy=f"set one of them, or let both through with --waive {VISIBILITY_CHECK}",
    )


def _read(seen: SeenGpus, ctx: ProcessContext) -> tuple[str, ...]:
    vendor, cuda = ctx.facts.gpu_vendor if ctx.facts else "", seen.variable == "CUDA_VISIBLE_DEVICES"
    if vendor == "nvidia" and not cuda and not ctx.spec.simulate:
        raise _refused(seen, "which NVIDIA's runtime does not read", "use CUDA_VISIBLE_DEVICES")
    try:
        gpus = listed_gpus(seen.value, blanks=cuda and vendor != "amd")
    except ValueError as error:
        raise _refused(seen, f"in which {error}", "write indexes like 0,1,2,3") from error
    wanted = len(ctx.process.gpus)
    if len(gpus) != wanted:
        shown = f"which shows it {len(gpus) or 'no'} GPU{'s' * (len(gpus) != 1)}, but the plan gives it {wanted}"
        raise _refused(seen, shown, f"name {wanted}")
    known = ctx.facts.gpus if ctx.facts and not ctx.spec.simulate else None
    for gpu in gpus if known is not None else ():
        if gpu.isdigit() and known is not None and int(gpu) >= known:
            place = f"rank {ctx.rank} ({ctx.node.name or ctx.node.address})"
            raise _refused(seen, f"but {place} has GPUs 0 to {known - 1}", "name some of those")
    return gpus


def _refused(seen: SeenGpus, why: str, remedy: str) -> SpecError:
    return SpecError(f"{seen.process} is given {seen.said}, {why}", remedy=f"{remedy}, {_WAIVE}")


def check_apart(every: Sequence[SeenGpus], ctx: RankContext) -> None:
    """Refuse servers of one node that see the same GPU; ``every``: the rank's servers. Raises SpecError naming both."""
    if len(every) < 2 or VISIBILITY_CHECK in ctx.spec.waive or not any(each.variable for each in every):
        return
    for number, later in enumerate(every):
        for earlier in every[:number]:
            _check_two(earlier, later, ctx)


def _check_two(one: SeenGpus, other: SeenGpus, ctx: RankContext) -> None:
    place = f"rank {ctx.rank} ({ctx.node.name or ctx.node.address})"
    both = f"{one.process} with {one.said} and {other.process} with {other.said}"
    if {gpu.isdigit() for gpu in one.gpus} != {gpu.isdigit() for gpu in other.gpus}:
        raise SpecError(
            f"nobody can tell whether two servers of {place} see different GPUs: {both}",
            remedy=f"name the GPUs of both by index or of both by UUID, {_WAIVE}",
        )
    common = [gpu for gpu in other.gpus if same_gpu(gpu, one.gpus)]
    if common:
        raise SpecError(
            f"two servers of {place} see GPU {listed(common, 4)}: {both}",
            remedy=f"give each GPUs of its own, or leave the variable out: the plan chooses them, {_WAIVE}",
        )


def device_remarks(env: MergedEnv, ctx: ProcessContext) -> Iterator[str]:
    """A warning for a list of RDMA devices that stands for more devices of the node than it names."""
    value = env.env.get(COLLECTIVE_DEVICES, "")
    more = further_matches(ctx, value) if value else ()
    if more:
        mark = "^=" if value.startswith("^") else "="
        yield (
            f"{COLLECTIVE_DEVICES} is {value!r} ({env.provenance[f'env/{COLLECTIVE_DEVICES}'][0][0]}), which stands for"
            f" {listed(more, 3)} of rank {ctx.rank} too: write {mark + value.lstrip('^')!r} to mean those names alone"
        )
