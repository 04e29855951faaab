"""Declarative source patches: match, apply, verify, revert."""

from __future__ import annotations

from disagg_run.patching.applying import apply_patches, check_patches, find_site, ledgers
from disagg_run.patching.fitting import is_needed, planned_as
from disagg_run.patching.ledger import Ledger, engine_ledgers, patched_roots
from disagg_run.patching.previewing import Preview, preview
from disagg_run.patching.reading import read_patches
from disagg_run.patching.reverting import revert_patches
from disagg_run.patching.selection import Selected, named_patches, select_patches
from disagg_run.patching.states import FileChange, PatchesRefused, PatchState
from disagg_run.patching.unrecorded import take_stock, unrecorded

__all__ = [
    "FileChange",
    "Ledger",
    "PatchState",
    "PatchesRefused",
    "Preview",
    "Selected",
    "apply_patches",
    "check_patches",
    "engine_ledgers",
    "find_site",
    "is_needed",
    "ledgers",
    "named_patches",
    "patched_roots",
    "planned_as",
    "preview",
    "read_patches",
    "revert_patches",
    "select_patches",
    "take_stock",
    "unrecorded",
]
