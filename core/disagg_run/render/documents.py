"""The plan document as text for programs: JSON, and the same data as YAML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from disagg_run.planning.document import LaunchPlan

if TYPE_CHECKING:
    import yaml

#: Text that YAML 1.1 or 1.2 readers may take for a number or a truth value, although PyYAML itself does not.
_AMBIGUOUS = re.compile(r"[-+]?[.0-9]|[yYnN]\Z")


def render_json(plan: LaunchPlan, *, indent: int | None = None) -> str:
    """The document as JSON, on one line unless ``indent`` (spaces) is given."""
    return plan.to_json(indent=indent)


def render_yaml(plan: LaunchPlan) -> str:
    """The document as YAML in block style, keys in document order; it reads back as the same data."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class PlanDumper(base):  # type: ignore[misc]  # the base is chosen above
        def ignore_aliases(self, data: Any) -> bool:
            return True

    PlanDumper.add_representer(str, _text_node)
    text: str = yaml.dump(
        plan.to_dict(),
        Dumper=PlanDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=2**31 - 1,
    )
    return text


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _AMBIGUOUS.match(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
