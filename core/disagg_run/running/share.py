"""What one rank's agent needs of the plan; the rest of a large plan need not stay in its memory."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from disagg_run.errors import RunError, UsageError
from disagg_run.planning.document import LaunchPlan, PlannedProcess, RankPlan, Ready
from disagg_run.planning.readiness import check_order
from disagg_run.running.gates import homes, must_listen, watchers
from disagg_run.running.serving import Entrance, entrance
from disagg_run.spec.model import as_tuple, frozen_map


@attrs.frozen(kw_only=True)
class Brief:
    """A process of the launch, as rank 0 speaks of it."""

    rank: int
    kind: str
    #: What must be proved: ``http http://…``.
    targets: tuple[str, ...] = attrs.field(converter=as_tuple)
    #: Seconds that it may take from its start; 0 = ready once started.
    timeout_s: float


@attrs.frozen(kw_only=True)
class Share:
    """One rank's part of the plan."""

    rank: RankPlan
    #: Digest of the whole plan, by which agents know that they run the same one.
    digest: str
    #: Ranks of the launch.
    ranks: int
    engine: str
    served_name: str
    simulated: bool
    #: Address of rank 0's node.
    first_address: str
    #: Proofs of those processes of other ranks that this rank waits for.
    remote: Mapping[str, tuple[Ready, ...]] = attrs.field(converter=frozen_map)
    #: Own processes for whose listening somebody waits.
    listened: frozenset[str]
    #: Rank 0 only: all processes of the launch, who waits for which, and where clients talk to it.
    roster: Mapping[str, Brief] = attrs.field(factory=dict, converter=frozen_map)
    watchers: Mapping[str, set[int]] = attrs.field(factory=dict, converter=frozen_map)
    entrance: Entrance | None = None

    def processes(self) -> tuple[PlannedProcess, ...]:
        """This rank's processes."""
        return self.rank.processes()


def check_runnable(plan: LaunchPlan) -> None:
    """Refuse a plan that cannot be run as it is: RunError says why.

    One without nodes, and one whose processes belong into containers: agents run what they are given where they are.
    """
    if plan.simulated:
        return
    if not plan.bound:
        raise RunError(
            "the plan is not bound to nodes and cannot be run",
            remedy="name the nodes with --nodes, or try it here with --simulate",
        )
    images = sorted({group.container.image for rank in plan.ranks for group in rank.groups if group.container})
    if images:
        raise RunError(
            f"the plan's processes belong into containers of {', '.join(images)}, which this launcher does not start",
            remedy="plan without --image and run it inside the container, or try it here with --simulate",
        )


def share_of(plan: LaunchPlan, rank: int) -> Share:
    """The part of ``rank``; UsageError where there is no such rank, PlanError where its order cannot be followed."""
    if not 0 <= rank < len(plan.ranks):
        raise UsageError(f"the plan has no rank {rank}", remedy=f"it has ranks 0 to {len(plan.ranks) - 1}")
    check_order(process for each in plan.ranks for process in each.processes())
    own = plan.ranks[rank]
    home = homes(plan)
    awaited = {edge.process for process in own.processes() for edge in process.after if home[edge.process] != rank}
    by_name = {process.name: process for each in plan.ranks for process in each.processes()}
    first = rank == 0
    return Share(
        rank=own,
        digest=plan.digest,
        ranks=len(plan.ranks),
        engine=plan.engine,
        served_name=plan.model.served_name,
        simulated=plan.simulated,
        first_address=plan.ranks[0].node.address,
        remote={name: by_name[name].ready for name in sorted(awaited)},
        listened=must_listen(plan) & {process.name for process in own.processes()},
        roster={name: _brief(process, home[name]) for name, process in by_name.items()} if first else {},
        watchers=watchers(plan) if first else {},
        entrance=entrance(plan) if first else None,
    )


def _brief(process: PlannedProcess, rank: int) -> Brief:
    return Brief(
        rank=rank,
        kind=process.kind,
        targets=[f"{ready.kind} {ready.target}".strip() for ready in process.ready],
        timeout_s=max((ready.timeout_s for ready in process.ready), default=0.0),
    )
