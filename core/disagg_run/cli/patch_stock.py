"""What stands in the installation that ``disagg-run patches`` is pointed at, and what of it can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from disagg_run.cli.patch_offers import offers
from disagg_run.errors import PatchError
from disagg_run.patching import Ledger, PatchState, find_site, patched_roots, revert_patches, take_stock, unrecorded
from disagg_run.patching.locating import Site
from disagg_run.patching.soundness import is_sound
from disagg_run.records import Patch


def stock(target: str | None, python: str | None) -> tuple[Ledger, ...]:
    """The patches of an installation, also those that no ledger lists."""
    patches, site = _installation(target, python)
    return take_stock(patches, site, _roots(site, target))


def taken_back(names: Sequence[str], target: str | None, python: str | None) -> tuple[PatchState, ...]:
    """Revert what can be, the patches ``names`` or all; the states, ``failed`` for what stands there without a ledger.

    Where one of ``names`` cannot be taken back, none is. Raises PatchError as ``revert_patches``.
    """
    patches, site = _installation(target, python)
    roots = _roots(site, target)
    lost = [each for root in roots for each in unrecorded(patches, site, root) if not names or each.id in names]
    states = () if names and lost else revert_patches(roots, names)
    if not states and not lost:
        for each in (each for each in take_stock(patches, site, roots) if each.problem):
            raise PatchError(f"{each.root}: {each.problem}")
    return (*states, *(attrs.evolve(each, state="failed") for each in lost))


def _installation(target: str | None, python: str | None) -> tuple[tuple[Patch, ...], Site]:
    # One that its author has got wrong stands nowhere; whoever asks for it hears of that.
    patches = tuple(patch for _, patch in offers() if is_sound(patch))
    return patches, find_site(patches, target=target, python=python)


def _roots(site: Site, target: str | None) -> tuple[Path, ...]:
    # A directory is its own root, also where no plugin of ours knows what was patched in it.
    own = site.searched if target is not None else (*site.roots.values(), *patched_roots(site))
    return tuple(dict.fromkeys(own))
