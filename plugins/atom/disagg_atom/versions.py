"""The ATOM versions that this plugin knows, and the flag catalogues taken from them."""

from __future__ import annotations

from pathlib import Path

from disagg_run.declarations import CatalogueRef, Combination

#: ATOM has no release that its images name; a state is named here by the date of its commit: this is ffdf3bb5.
NEWEST = "2026.8.22"

#: All versions are planned alike: nothing that the plugin gives is known to have changed.
RANGE = ">=0"

_CATALOGUES = Path(__file__).parent / "catalogues"

CATALOGUES = (
    CatalogueRef(program="server", version=NEWEST, file=_CATALOGUES / "atom-openai-server.json"),
    CatalogueRef(program="router", version=NEWEST, file=_CATALOGUES / "atomesh.json"),
)

#: Server and router are of one commit, and served behind each other as stand-ins made from it.
TESTED = (Combination(engine=f"=={NEWEST}", connectors=("atom-mooncake",), router=f"=={NEWEST}"),)
