"""Source patches as records: what to find in which file of a package, and what stands there afterwards."""

from __future__ import annotations

from typing import Literal

import attrs

from disagg_run.spec.model import as_tuple


@attrs.frozen(kw_only=True)
class Edit:
    """One replacement in a file: ``anchor`` must be found exactly once within its scope."""

    #: What to find.
    anchor: str
    #: What stands in its place afterwards.
    replacement: str
    #: Qualified name of the class or function in which to look (``Class.method``); "" = the whole file.
    scope: str = ""
    #: ``text``: the anchor is matched letter by letter. ``statements``: the anchor is whole statements, compared as
    #: syntax, so that comments, line breaks and indentation do not matter; the replacement gets the indentation of what
    #: it replaces.
    by: Literal["text", "statements"] = "text"
    #: File, relative to the import root (``toy/server.py``); "" = the patch's.
    file: str = ""
    #: Package versions for which it is made, as a PEP 440 specifier set; "" = all of the patch.
    versions: str = ""
    #: Leave it out where its file does not exist. At least one edit of a patch must find its file.
    optional: bool = False


@attrs.frozen(kw_only=True)
class FileDigest:
    """What a file is in one release, and what one patch alone makes of it."""

    #: Package version.
    version: str
    #: File, relative to the import root.
    file: str
    #: SHA-256 of the file as released, in hex.
    before: str
    #: SHA-256 of the file with this patch and those that it requires, in hex.
    after: str


@attrs.frozen(kw_only=True)
class Patch:
    """A declarative source patch; the plan carries it whole, so that a node needs no plugin."""

    #: Unique id: ``toy-wait-bound``.
    id: str
    #: Why, in one sentence.
    why: str
    #: Upstream issue or change that it stands in for.
    upstream: str = ""
    #: Distribution package names, any of which may be installed: ``("toy", "toy-cpu")``.
    package: tuple[str, ...] = attrs.field(converter=as_tuple)
    #: Versions that it is for, as a PEP 440 specifier set; "" = all.
    versions: str = ""
    #: First release that does not need it; "" = none yet.
    fixed_in: str = ""
    #: What upstream did in that release, in one clause.
    fixed_by: str = ""
    #: The setting that grants the same wish from that release on, which the plugin then sets; "" = nothing to set.
    instead: str = ""
    #: File of the edits that name none, relative to the import root.
    file: str = ""
    edits: tuple[Edit, ...] = attrs.field(default=(), converter=as_tuple)
    #: Ids of patches that must be applied before.
    requires: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Whether a run stops where it does not match.
    required: bool = True
    #: Known digests, by release and file.
    digests: tuple[FileDigest, ...] = attrs.field(default=(), converter=as_tuple)
    #: Names under which it can be asked for together with others.
    sets: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: In a plan: the package version that it was selected for; its edits and digests are those of this version alone.
    planned_for: str = ""
    #: In a plan: reference under which the engine may be changed, for the ledger; "" = none was given.
    waiver: str = ""
