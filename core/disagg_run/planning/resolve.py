"""What a spec leaves open, settled before placement: engine version, model row, model path, tensor-parallel size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from disagg_run.declarations import UNKNOWN_MODEL, Engine, ModelRow
from disagg_run.errors import PlanError, PluginError, SpecError, TopologyError
from disagg_run.facts import NodeFacts
from disagg_run.near_miss import did_you_mean
from disagg_run.sources import CORE_DEFAULT, Layer, Source
from disagg_run.spec.model import ROLES, LaunchSpec, Role, RoleSpec

# A version counts only where the whole tag, or a part of it that starts with "v", is one: `v0.5.12-rocm700-mi35x` is an
# engine's 0.5.12, `rocm7.2.0-nightly` is not.
_TAG_VERSION = re.compile(r"(?:\A|[-_])v(\d+\.\d+(?:\.\d+)?(?:\.?(?:rc|post|dev)\d+)?)|\A(\d+\.\d+\.\d+)(?=\Z|-)")


def in_range(version: str, specifiers: str, *, plugin: str) -> bool:
    """Whether ``version`` lies in the PEP 440 set ``specifiers`` (pre-releases too).

    Raises PluginError for a broken set, SpecError for a version that is none.
    """
    try:
        return SpecifierSet(specifiers).contains(Version(version), prereleases=True)
    except InvalidSpecifier:
        raise PluginError(f"plugin {plugin!r} gives {specifiers!r}, which is no version range") from None
    except InvalidVersion:
        raise SpecError(
            f"engine version {version!r} is no version", remedy="write it like 0.5.12 or 0.5.12.post1"
        ) from None


def engine_version(spec: LaunchSpec, engine: Engine, facts: Mapping[int, NodeFacts]) -> tuple[str, Source]:
    """The version to plan for and who said so: the user, the image's tag, the nodes, or the engine plugin's default.

    Raises SpecError for nodes that differ or a version that the plugin cannot plan for.
    """
    version, source = _stated_version(spec, engine, facts)
    if not in_range(version, engine.versions, plugin=engine.name):
        raise SpecError(
            f"{engine.name} plans for versions {engine.versions}, not for {version} ({source})",
            remedy="name one with --engine-version",
        )
    return version, source


def _stated_version(spec: LaunchSpec, engine: Engine, facts: Mapping[int, NodeFacts]) -> tuple[str, Source]:
    if spec.engine_version:
        return spec.engine_version, spec.source("engine_version")
    if spec.image:
        tagged = _tag_version(spec.image)
        if tagged:
            return tagged, attrs.evolve(spec.source("image"), why=f"tag of image {spec.image}")
    installed = sorted({fact.engine_version for fact in facts.values() if fact.engine_version})
    if len(installed) > 1:
        raise SpecError(
            f"the nodes have different versions of {engine.name} installed: {', '.join(installed)}",
            remedy="install one, or name the version to plan for with --engine-version",
        )
    if installed:
        return installed[0], Source(layer=Layer.CORE, where="installed engine")
    return engine.default_version, Source(
        layer=Layer.ENGINE, plugin=engine.name, why="no version was named, no image tag tells one, none is installed"
    )


def _tag_version(image: str) -> str:
    """The version that the tag of an image plainly says; "" = none."""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    found = _TAG_VERSION.search(tag)
    return (found[1] or found[2]) if found else ""


def tag_remark(spec: LaunchSpec) -> str:
    """A warning for an image whose tag says another version than the one that was named; "" = they agree.

    A tag of two numbers stands for all releases that begin with them.
    """
    tagged = _tag_version(spec.image or "")
    if not (tagged and spec.engine_version):
        return ""
    said, named = Version(tagged), Version(spec.engine_version)
    if said.public == named.public or (len(said.release) < 3 and named.release[: len(said.release)] == said.release):
        return ""
    return (
        f"the plan is for version {spec.engine_version} ({spec.source('engine_version')}), but the tag of image"
        f" {spec.image!r} says {tagged}"
    )


def model_row(spec: LaunchSpec, engine: Engine, rows: Iterable[ModelRow], version: str) -> ModelRow:
    """The table's row for the spec's model and the engine version.

    Raises SpecError for a model that the table does not have (naming the nearest), or not for this version.
    """
    rows = tuple(rows)
    named = [row for row in rows if row.name == spec.model]
    for row in named:
        if in_range(version, row.versions, plugin=engine.name):
            return row
    if named:
        ranges = ", ".join(sorted({row.versions or "all" for row in named}))
        raise SpecError(
            f"{engine.name} has {spec.model!r} for versions {ranges}, not for {version}",
            remedy="name another --engine-version",
        )
    # A slip of a name would run with the wrong flags, so that beside a table any other model is asked for twice.
    if engine.any_model and (not rows or UNKNOWN_MODEL in spec.waive):
        return ModelRow(name=spec.model)
    names = sorted({row.name for row in rows})
    known = f"its table has {', '.join(names) or 'none'}"
    if engine.any_model:
        known += f"; any other is planned with the engine's own defaults under --waive {UNKNOWN_MODEL}"
    raise SpecError(
        f"{engine.name} has no model {spec.model!r} ({spec.source('model')})",
        remedy=f"{did_you_mean(spec.model, names, cutoff=0.5)} {known}".lstrip(),
    )


def with_tensor_parallel(spec: LaunchSpec, engine: Engine, row: ModelRow) -> LaunchSpec:
    """The spec with each role's ``tp`` filled in: as asked, else the model row's, else what a node's GPUs leave.

    Raises TopologyError where pp * dp leaves no whole number of GPUs.
    """
    changes: dict[Role, RoleSpec] = {}
    sources = dict(spec.sources)
    for role in ROLES:
        asked = spec.role(role)
        if asked.tp is not None:
            continue
        tp, source = _default_tp(spec, engine, row, role)
        changes[role] = attrs.evolve(asked, tp=tp)
        sources[f"{role}.tp"] = source
    return attrs.evolve(
        spec,
        prefill=changes.get("prefill", spec.prefill),
        decode=changes.get("decode", spec.decode),
        sources=sources,
    )


def _default_tp(spec: LaunchSpec, engine: Engine, row: ModelRow, role: Role) -> tuple[int, Source]:
    if role in row.tp:
        return row.tp[role], Source(layer=Layer.MODEL, plugin=engine.name, where=row.place(f"tp.{role}"))
    replicas = spec.role(role).pp * spec.role(role).dp
    if replicas < 1 or spec.gpus_per_node % replicas:
        raise TopologyError(
            f"{role}: pp * dp = {replicas} does not divide the {spec.gpus_per_node} GPUs of a node",
            remedy=f"name --{role}-tp",
        )
    return spec.gpus_per_node // replicas, attrs.evolve(CORE_DEFAULT, why="all GPUs of a node")


def model_path(spec: LaunchSpec) -> str:
    """Where the model lies on the nodes; PlanError where nothing says so, SpecError where it looks like a flag."""
    if spec.model_path:
        return _no_flag(spec, "model_path", spec.model_path)
    if not spec.model_dir:
        raise PlanError(
            "neither a model path nor a model directory is given", remedy="name --model-path or --model-dir"
        )
    return _no_flag(spec, "model_dir", f"{spec.model_dir.rstrip('/') or ''}/{spec.model}")


def _no_flag(spec: LaunchSpec, asked: str, path: str) -> str:
    if path.startswith("-"):
        raise SpecError(
            f"the model's path {path!r} ({spec.source(asked)}) begins with a dash, so that programs take it for a flag",
            remedy=f"write ./{path} or the whole path",
        )
    return path
