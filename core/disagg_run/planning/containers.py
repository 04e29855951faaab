"""The container of a group: what plugins and the user want, united; and whether it has what its commands name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import attrs

from disagg_run.context import RankContext
from disagg_run.errors import PlanError
from disagg_run.mounts import asked_mounts, inside, is_below
from disagg_run.planning.document import PlannedContainer, PlannedProcess
from disagg_run.records import ContainerNeeds, Mount

T = TypeVar("T")

#: Name of the check that an expert waives to use a path that the host has and no mount gives to the container.
PATH_CHECK = "host-paths"

#: What ends a path within a word, and what may stand right before one.
_PATH_END = re.compile(r"[\s\"',:;=|<>(){}\[\]]|\Z")
_PATH_START = re.compile(r"[\w./-]")


def planned_container(image: str, needs: Iterable[ContainerNeeds], ctx: RankContext) -> PlannedContainer:
    """The container of an image, with the ``needs`` of plugins and the user's mounts.

    Raises PlanError for two mounts at one place.
    """
    united = ContainerNeeds()
    for need in needs:
        united = ContainerNeeds(
            mounts=_union(united.mounts, need.mounts),
            devices=_union(united.devices, need.devices),
            groups=_union(united.groups, need.groups),
            capabilities=_union(united.capabilities, need.capabilities),
            ulimits={**united.ulimits, **need.ulimits},
            shm_bytes=max(united.shm_bytes, need.shm_bytes),
            ipc_host=united.ipc_host or need.ipc_host,
            network_host=united.network_host or need.network_host,
        )
    mounts = _mounts(united.mounts, asked_mounts(ctx.spec), image)
    return PlannedContainer(image=image, needs=attrs.evolve(united, mounts=mounts))


def _union(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _mounts(own: Iterable[Mount], asked: Iterable[Mount], image: str) -> tuple[Mount, ...]:
    """All mounts; where plugins and the user mean the same, as the user wants it."""
    at: dict[str, Mount] = {}
    for mount in (*own, *asked):
        other = at.get(mount.target)
        if other is not None and other.source != mount.source:
            raise PlanError(
                f"{other.source!r} and {mount.source!r} are both to be mounted at {mount.target!r} in the container of"
                f" {image}",
                remedy="give yours another place with --mount",
            )
        at[mount.target] = mount
    return tuple(at.values())


def check_paths(
    container: PlannedContainer, processes: Iterable[tuple[PlannedProcess, Collection[str]]], ctx: RankContext
) -> None:
    """Refuse commands and variables that name a path of the host which the container does not have.

    ``processes``: each with the flags and variables that a user gave it. Known to be of the host are the model, the
    directory of models where it is one of them, and for those by users what the user mounts: what plugins set otherwise
    are places inside. Raises PlanError naming process, argument and path; nothing is refused where the check is waived.
    """
    if PATH_CHECK in ctx.spec.waive:
        return
    mounts = container.needs.mounts
    # The model's own path is mounted, or only a name that clients use, where the model lies in a snapshot.
    shown = [*(mount.target for mount in mounts), ctx.model_path]
    # All paths of the host are below /, and so are all that the image has: such a mount tells nothing of a path.
    mounted = [mount.source for mount in asked_mounts(ctx.spec) if mount.source != "/"]
    of_models, of_all = (
        [place for place in places if not any(is_below(place, each) for each in shown)]
        for places in (_model_places(ctx), [*_model_places(ctx), *mounted])
    )
    for process, given in processes if of_all else ():
        for name, what, text in _texts(process):
            for path in _named_paths(text, of_all if name in given else of_models):
                if not any(is_below(path, each) for each in shown):
                    raise _nowhere(process.name, what, path, container.image, inside(mounts, path))


def _model_places(ctx: RankContext) -> list[str]:
    places = [ctx.model_source or ctx.model_path]
    if not ctx.spec.model_path and ctx.spec.model_dir.strip("/"):
        places.append(ctx.spec.model_dir.rstrip("/"))
    return places


def _texts(process: PlannedProcess) -> Iterator[tuple[str, str, str]]:
    """Each word and value of a process: the flag or variable, what messages call that, the text."""
    flag = ""
    for word in process.argv:
        if word.startswith("-"):
            flag = word.partition("=")[0]
        yield flag, flag or "the command", word
    for name, value in process.env.items():
        yield name, f"variable {name}", value
    lists: Sequence[Mapping[str, tuple[str, ...]]] = (process.env_prepend, process.env_append)
    for values in lists:
        for name, elements in values.items():
            for element in elements:
                yield name, f"variable {name}", element


def _named_paths(text: str, places: Iterable[str]) -> Iterator[str]:
    """The paths in a text that lie in one of ``places``; alone, after ``=``, in JSON or in a list."""
    for place in places:
        at = text.find(place)
        while at >= 0:
            end = _PATH_END.search(text, at)
            assert end is not None  # the end of the text is one
            path = text[at : end.start()].rstrip("/")
            if is_below(path, place) and not (at and _PATH_START.match(text[at - 1])):
                yield path
            at = text.find(place, at + 1)


def _nowhere(process: str, what: str, path: str, image: str, within: str) -> PlanError:
    remedy = f"write {within!r}, where the container has it" if within else f"mount it with --mount {path}"
    return PlanError(
        f"{what} of {process} names {path!r}, which is a path of the host that the container of {image} does not have",
        remedy=f"{remedy}, or let it through with --waive {PATH_CHECK}",
    )
