"""Options of workers: the same for each role, and for both at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from disagg_run.spec.model import ROLES, Role
from disagg_run.spec.option import Option, Type

#: Key, type, field, least value, summary of what each role has.
_OF_ROLE: tuple[tuple[str, Type, str, int | None, str], ...] = (
    ("tp", "int", "tp", 1, "tensor-parallel size: GPUs of one worker over all its nodes"),
    ("pp", "int", "pp", 1, "pipeline-parallel size; a worker has tp x pp x dp GPUs"),
    ("dp", "int", "dp", 1, "data-parallel replicas inside a worker, each with GPUs of its own"),
    ("dp-attention", "bool", "dp_attention", None, "data-parallel attention over the worker's GPUs"),
    ("ep", "bool", "expert_parallel", None, "expert parallelism over the worker's GPUs"),
    ("mtp", "int", "mtp", 0, "speculative tokens a step by multi-token prediction; 0 = off"),
)

#: Most speculative tokens a step that are taken for meant: each further one is accepted more rarely, and engines set
#: aside room for all of them.
MOST_MTP = 16

#: The contract's variables by run-file key. Its TP sizes are GPUs of a worker; its MTP size is for both roles.
_ROLE_CONTRACT: Mapping[str, str] = {
    "prefill.workers": "xP",
    "decode.workers": "yD",
    "prefill.tp": "PREFILL_TP_SIZE",
    "decode.tp": "DECODE_TP_SIZE",
    "prefill.dp-attention": "PREFILL_ENABLE_DP",
    "decode.dp-attention": "DECODE_ENABLE_DP",
    "prefill.ep": "PREFILL_ENABLE_EP",
    "decode.ep": "DECODE_ENABLE_EP",
    "mtp": "DECODE_MTP_SIZE",
}


def _numbers(prefix: str, group: str, roles: Iterable[Role]) -> Iterator[Option]:
    for name, kind, field, minimum, summary in _OF_ROLE:
        key = prefix + name
        yield Option(
            key=key,
            summary=summary,
            group=group,
            type=kind,
            fields=[f"{role}.{field}" for role in roles],
            minimum=minimum,
            maximum=MOST_MTP if name == "mtp" else None,
            contract=[_ROLE_CONTRACT[key]] if key in _ROLE_CONTRACT else [],
            unset_values=["0"] if key == "mtp" else [],
        )


def role_options(role: Role) -> Iterator[Option]:
    """What is asked of one role."""
    group = f"{role.capitalize()} workers"
    yield Option(
        key=f"{role}.workers",
        summary="number of workers (server instances); default: 1",
        group=group,
        type="int",
        flag=f"--{role}",
        minimum=1,
        contract=[_ROLE_CONTRACT[f"{role}.workers"]],
    )
    yield from _numbers(f"{role}.", group, [role])
    yield Option(
        key=f"{role}.nodes",
        summary="nodes of this role; default: what its workers need",
        group=group,
        type="int",
        minimum=1,
    )
    yield Option(key=f"{role}.args", summary="further flags, as one text", group=group, type="args")
    yield Option(key=f"{role}.env", summary="a variable", group=group, type="env", metavar="NAME=VALUE")
    yield Option(
        key=f"{role}.settings",
        summary="a setting of a plugin",
        group=group,
        type="settings",
        flag=f"--{role}-set",
        metavar="NAME=VALUE",
    )


def both_roles_options() -> Iterator[Option]:
    """What is asked of both roles at once."""
    yield from _numbers("", "Workers of both roles", ROLES)
