"""Writes plugins/vllm/disagg_vllm/patches/digests.json anew from the true sources of the releases.

    python -m tests.real.record_patch_digests [FILE]

Run it when a patch or the list of releases has changed; test_patches_vllm.py compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs

from disagg_run.patching.editing import Fits, carry_out
from disagg_run.patching.fitting import for_version
from disagg_run.patching.manifest import sha256
from disagg_run.patching.ordering import closure, files_of, in_order
from disagg_run.records import Patch
from disagg_vllm import patches_moriio
from tests.real.vllm_sources import NIXL_RELEASES, VLLM_RELEASES, nixl_tree, vllm_tree


def rows() -> list[dict[str, str]]:
    """One row for each patch, release and file."""
    vllm = [patch for patch in patches_moriio.offered() if "vllm" in patch.package]
    nixl = [patch for patch in patches_moriio.offered() if "nixl-cu12" in patch.package]
    found = [row for version in VLLM_RELEASES for row in _of(vllm, version, vllm_tree(version))]
    found += [row for version in NIXL_RELEASES for row in _of(nixl, version, nixl_tree(version))]
    return sorted(found, key=lambda row: (row["patch"], [int(part) for part in row["version"].split(".")], row["file"]))


def _of(patches: list[Patch], version: str, tree: Path) -> Iterator[dict[str, str]]:
    fitting = {patch.id: found for patch in patches if isinstance(found := for_version(patch, version), Patch)}
    for patch in fitting.values():
        together = in_order(
            [
                attrs.evolve(each, requires=tuple(name for name in each.requires if name in fitting))
                for each in fitting.values()
                if each.id in closure(patch, fitting)
            ]
        )
        names = {name for each in together for name in files_of(each)}
        originals = {name: (tree / name).read_text() if (tree / name).exists() else None for name in names}
        edited = carry_out(originals, together)
        verdict = edited.verdicts[patch.id]
        assert isinstance(verdict, Fits), f"{patch.id} on {version}: {verdict}"
        for name in verdict.files:
            before, after = (originals[name] or "").encode(), edited.texts[name].encode()
            yield {
                "patch": patch.id,
                "version": version,
                "file": name,
                "before": sha256(before),
                "after": sha256(after),
            }


def text() -> str:
    """The file's content: a row a line."""
    return "[\n" + ",\n".join(json.dumps(row) for row in rows()) + "\n]\n"


if __name__ == "__main__":
    default = Path(patches_moriio.__file__).parent / "patches" / "digests.json"
    Path(sys.argv[1] if len(sys.argv) > 1 else default).write_text(text(), encoding="utf-8")
