"""What job scripts say of the nodes beside their list, which must say the same: else ranks wait for each other."""

from __future__ import annotations

from collections.abc import Mapping

from disagg_run.addresses import is_loopback, normal_address, numeric_address
from disagg_run.errors import SpecError
from disagg_run.spec.environment import UNSET
from disagg_run.spec.model import LaunchSpec
from disagg_run.topology_needs import origin

#: Variables that name the host of rank 0: the job scripts' own, and that of PyTorch's launchers.
_FIRST = ("NODE0_ADDR", "MASTER_ADDR")


def check_node_contract(spec: LaunchSpec, environ: Mapping[str, str]) -> None:
    """Refuse a number of nodes and a first node that are not those of the list, with SpecError.

    A first node by another kind of name, an address beside a host name, is not compared; this machine's own loopback,
    which some images set, says nothing.
    """
    if not spec.nodes:
        return
    number = environ.get("NNODES", "")
    if number not in UNSET and number.strip() != str(len(spec.nodes)):
        raise SpecError(
            f"environment variable NNODES says {number!r}, but the list of nodes has {len(spec.nodes)}"
            f"{origin(spec, 'nodes')}",
            remedy="make the two agree",
        )
    first = spec.nodes[0]
    for name in _FIRST:
        given = environ.get(name, "")
        if given in UNSET or given == "localhost" or given == first.name or _same(given, first.address):
            continue
        of_one_kind = (numeric_address(given) is None) is (numeric_address(first.address) is None)
        if of_one_kind and not is_loopback(given):
            raise SpecError(
                f"environment variable {name} says {given!r}, but rank 0 is on {first.address!r}"
                f"{origin(spec, 'nodes')}",
                remedy=f"the first node of the list is rank 0's: correct the order, or leave {name} out",
            )


def _same(one: str, other: str) -> bool:
    try:
        return normal_address(one) == normal_address(other)
    except ValueError:
        return False
