"""What every engine asks of a node: containers by the kind of GPUs and NICs, checks, and the GID of RDMA devices."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from disagg_run import Nic, NodeFacts
from disagg_run.node_needs import container_needs, driver_checks, forced_gid, mounted_dir

FE80, FD00, IPV4 = "fe80::1", "fd00::1", "::ffff:10.0.0.1"


def nic(name: str, gids: Mapping[int, str] | None = None) -> Nic:
    return Nic(name=name, gids=gids or {})


@pytest.mark.parametrize(
    ("nics", "index"),
    [
        ([], None),
        ([nic("a")], None),
        ([nic("a", {0: FE80, 1: FD00})], 1),
        ([nic("a", {0: FE80, 1: FE80, 2: FD00}), nic("b", {0: FE80, 1: FD00, 2: FD00})], 2),
        ([nic("a", {0: FE80, 1: FD00}), nic("b", {0: FE80})], None),
        ([nic("a", {0: FE80, 1: FD00}), nic("b")], None),
        ([nic("a", {0: FE80, 1: FE80, 2: IPV4, 3: IPV4})], None),
        ([nic("a", {0: FE80})], None),
        ([nic("a", {0: FE80, 1: "::", 2: "no gid", 3: FD00})], 3),
    ],
)
def test_a_gid_index_is_forced_only_where_it_helps(nics: list[Nic], index: int | None) -> None:
    chosen = forced_gid(nics)
    assert (chosen and chosen[0]) == index


def test_a_container_on_amd_gpus_is_given_their_devices_and_the_libraries_of_the_nics() -> None:
    needs = container_needs(NodeFacts(nics=[Nic(name="ionic_0", driver="ionic")]), vendor="amd", model="/models/toy")
    assert needs.devices == ("/dev/kfd", "/dev/dri", "/dev/infiniband")
    assert needs.groups == ("video",)
    assert needs.mounts[0].source == needs.mounts[0].target == "/models/toy"
    assert any("libionic" in mount.source and mount.optional for mount in needs.mounts)


@pytest.mark.parametrize("facts", [None, NodeFacts(), NodeFacts(nics=[Nic(name="mlx5_0", driver="mlx5_core")])])
def test_a_nic_whose_driver_the_image_has_gets_no_library_of_the_host(facts: NodeFacts | None) -> None:
    assert len(container_needs(facts, vendor="amd", model="/models/toy").mounts) == 1


def test_devices_of_other_makers_are_not_named() -> None:
    assert container_needs(None, vendor="nvidia", model="/m").devices == ("/dev/infiniband",)
    assert container_needs(None, vendor="cpu", model="/m").groups == ()
    assert [check.target for check in driver_checks("nvidia")] == ["/dev/nvidiactl"]
    assert list(driver_checks("cpu")) == []


def test_a_snapshot_of_a_hugging_face_cache_is_mounted_with_what_it_links_to() -> None:
    assert mounted_dir("/hub/models--org--toy/snapshots/0123") == "/hub/models--org--toy"
    assert mounted_dir("/models/toy") == "/models/toy"
