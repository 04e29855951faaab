"""Where a model lies on a node: at the path that was asked for, or in the snapshot that a Hugging Face cache names."""

from __future__ import annotations

import posixpath

import attrs

from disagg_run.context import RankContext
from disagg_run.sources import Source


def located(ctx: RankContext) -> tuple[str, str]:
    """Where the model lies on the rank's node, and why there ("" = as asked for).

    A directory of a Hugging Face cache holds no model itself: ``refs/main`` names the snapshot that does. The first one
    that a listing shows may be another.
    """
    links = ctx.facts.links if ctx.facts else {}
    path = ctx.model_path.rstrip("/") or "/"
    directory = path
    if directory not in links and not ctx.spec.model_path:
        # models--ORG--NAME beside where NAME would be.
        parent, name = posixpath.split(path)
        cached = [each for each in links if posixpath.split(each) == (parent, posixpath.basename(each))]
        named = [each for each in cached if posixpath.basename(each).split("--")[-1] == name]
        directory = named[0] if len(named) == 1 else path
    target = links.get(directory)
    if not target:
        return ctx.model_path, ""
    snapshot = target if target.startswith("/") else f"{directory}/snapshots/{target}"
    return snapshot, f"snapshot that refs/main of {directory} names"


def located_by(ctx: RankContext) -> Source:
    """Who said where the model lies."""
    path = "model_path" if ctx.spec.model_path else "model_dir"
    return attrs.evolve(ctx.spec.source(path), why=located(ctx)[1] or f"{path} of {ctx.spec.model}")
