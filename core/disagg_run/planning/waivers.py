"""What an expert lets through with ``--waive``: which names there are, and what each let through in a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from disagg_run.context import RankContext
from disagg_run.declarations import UNKNOWN_MODEL, Engine, Extension
from disagg_run.errors import DisaggError, SpecError
from disagg_run.gpus import VENDOR_CHECK, VISIBILITY_CHECK
from disagg_run.host import Selection
from disagg_run.near_miss import did_you_mean
from disagg_run.node_needs import DRIVER_CHECK, MODEL_CHECK
from disagg_run.planning.containers import PATH_CHECK
from disagg_run.planning.document import LaunchPlan, Remark
from disagg_run.planning.load_length import LOAD_CHECK
from disagg_run.planning.secret_values import SECRET_CHECK
from disagg_run.rdma import DEVICE_CHECK, RAIL_CHECK
from disagg_run.spec.model import LaunchSpec

#: The core's own checks, and what waiving one lets through.
CORE_CHECKS: Mapping[str, str] = {
    DRIVER_CHECK: "a node without the driver of its GPUs",
    VENDOR_CHECK: "GPUs that a program or library is not made for",
    VISIBILITY_CHECK: "a variable that chooses other GPUs than the plan, or two of them",
    SECRET_CHECK: "a value in the plan that looks like a secret",
    PATH_CHECK: "a path of the host that no mount gives to the container",
    DEVICE_CHECK: "no RDMA devices, or some that a node is not known to have",
    RAIL_CHECK: "prefill and decode on one node whose RDMA devices do not meet",
    LOAD_CHECK: "requests of the load that are longer than the servers take",
    MODEL_CHECK: "a node that does not have the model where the plan says",
}


def checks_of(record: Engine | Extension) -> dict[str, str]:
    """What can be waived with a plugin beside parity, and what that lets through; with an engine the core's checks."""
    if isinstance(record, Extension):
        return dict(record.waivable)
    model = {UNKNOWN_MODEL: "a model without a row, with the engine's own defaults"} if record.any_model else {}
    return {**CORE_CHECKS, **model, **record.waivable}


def check_names(spec: LaunchSpec, selection: Selection, ranks: Iterable[RankContext]) -> None:
    """Refuse waivers that name nothing: neither what is declared nor a preflight check of this plan.

    Raises SpecError naming the nearest name and all that there are.
    """
    known = {value.name for value in selection.parity} | {*checks_of(selection.engine), *selection.waivable}
    if not known.issuperset(spec.waive):
        known.update(each.record.name for ctx in ranks for each in selection.preflight(ctx))
    for name in spec.waive:
        if name not in known:
            raise SpecError(
                f"nothing can be waived as {name!r} ({spec.source(f'waive.{name}')})",
                remedy=f"{did_you_mean(name, known)} what can be is {', '.join(sorted(known))}".lstrip(),
            )


@attrs.frozen
class Waived:
    """What the waivers of a plan did."""

    remarks: tuple[Remark, ...] = ()
    #: Names that let nothing through.
    idle: tuple[str, ...] = ()


def explain(
    made: LaunchPlan, spec: LaunchSpec, shared: Sequence[Remark], replan: Callable[[LaunchSpec], LaunchPlan]
) -> Waived:
    """What each waiver of ``spec`` let through in the plan that was ``made``, found by planning without it.

    ``shared``: differences between prefill and decode that were let through. ``replan``: plans another spec, without
    explaining its waivers.
    """
    remarks, idle = list(shared), []
    for name in spec.waive:
        if any(remark.source == name for remark in shared):
            continue
        message = _without(name, made, spec, replan)
        if message:
            remarks.append(Remark(message=message, source=name))
        else:
            idle.append(name)
    return Waived(tuple(remarks), tuple(idle))


def _without(name: str, made: LaunchPlan, spec: LaunchSpec, replan: Callable[[LaunchSpec], LaunchPlan]) -> str:
    """What would be otherwise without the waiver; "" = nothing."""
    try:
        other = replan(attrs.evolve(spec, waive=[each for each in spec.waive if each != name]))
    except DisaggError as error:
        return error.message
    if any(check.name == name for rank in made.ranks for group in rank.groups for check in group.preflight):
        return "a node on which this check fails is warned of, and used"
    return "" if other.ranks == made.ranks else "the plan is made without this check"


def idle_warnings(spec: LaunchSpec, waived: Waived, *, known_nodes: bool) -> Iterator[Remark]:
    """A warning for each waiver that let nothing through, where the nodes are known: else it may yet on them."""
    if known_nodes and not spec.simulate:
        for name in waived.idle:
            yield Remark(message=f"--waive {name} let nothing through", source=str(spec.source(f"waive.{name}")))
