"""Where a model lies on a node: at the path that was asked for, or in the snapshot that a Hugging Face cache names."""

from __future__ import annotations

import posixpath

import attrs

from disagg_run.context import RankContext
from disagg_run.mounts import asked_mounts, inside
from disagg_run.node_needs import mounted_dir
from disagg_run.sources import Source


def located(ctx: RankContext) -> tuple[str, str]:
    """Where the model lies for the processes of the rank's node, and why there ("" = as asked for).

    A directory of a Hugging Face cache holds no model itself: ``refs/main`` names the snapshot that does. The first one
    that a listing shows may be another.
    """
    path, why = _on_host(ctx)
    return _within(ctx, path) or path, why


def model_to_mount(ctx: RankContext) -> str:
    """Where the model lies on the host, for its container to be given it; "" where the user's mounts have it."""
    path, _ = _on_host(ctx)
    return "" if _within(ctx, path) else path


def _within(ctx: RankContext, path: str) -> str:
    """Where the user's mounts show a model that lies at ``path``, with all that it links to; "" = nowhere."""
    mounts = asked_mounts(ctx.spec)
    return inside(mounts, path) if inside(mounts, mounted_dir(path)) else ""


def _on_host(ctx: RankContext) -> tuple[str, str]:
    links = ctx.facts.links if ctx.facts else {}
    asked = ctx.model_source or ctx.model_path
    path = asked.rstrip("/") or "/"
    directory = path
    if directory not in links and not ctx.spec.model_path:
        # models--ORG--NAME beside where NAME would be.
        parent, name = posixpath.split(path)
        cached = [each for each in links if posixpath.split(each) == (parent, posixpath.basename(each))]
        named = [each for each in cached if posixpath.basename(each).split("--")[-1] == name]
        directory = named[0] if len(named) == 1 else path
    target = links.get(directory)
    if not target:
        return asked, ""
    snapshot = target if target.startswith("/") else f"{directory}/snapshots/{target}"
    return snapshot, f"snapshot that refs/main of {directory} names"


def located_by(ctx: RankContext) -> Source:
    """Who said where the model lies."""
    path = "model_path" if ctx.spec.model_path else "model_dir"
    return attrs.evolve(ctx.spec.source(path), why=located(ctx)[1] or f"{path} of {ctx.spec.model}")
