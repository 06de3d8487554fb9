"""Reference pages of the command line, from configs/ and the typed options."""

import re
from collections.abc import Mapping

from ..core.options import REQUIRED, Option, options_of
from ..session.overrides import as_typed, choices_of
from ..session.settings import CONFIGS, GIVEN, OWN, Settings, declared, target_of
from ..session.trust import located
from .markdown import Open, table, write

NEEDS = {"nothing": "no configuration", "configuration": "the configuration of a run", "run": "`run=DIRECTORY`"}


def option_table(group: str, options: Mapping[str, Option]) -> str:
    """A row for each option of a group: its key, what it accepts, its default, and its explanation."""
    prefix = f"{group}." if group else ""
    rows = []
    for name, option in options.items():
        if name in GIVEN.get(group, ()):
            continue
        default = list(option.default) if isinstance(option.default, tuple) else option.default
        shown = "required" if default is REQUIRED else f"`{as_typed(default)}`"
        rows.append([f"`{prefix}{name}`", option.accepts, shown, escaped(option.explanation)])
    return table(["option", "values", "default", "meaning"], rows) if rows else "No options.\n"


def escaped(text: str) -> str:
    """`text` as Markdown that shows `<`, `*` and `_` as they are."""
    special = r"[<*_](?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)"  # outside of code
    return re.sub(special, lambda found: "&lt;" if found[0] == "<" else f"\\{found[0]}", text)


def explained(group: str, name: str) -> str:
    """The docstring of a component's options, up to its list of options."""
    text = declared(target_of(group, name), group).__doc__ or ""
    return escaped(" ".join(re.split(r"\n\s*\n|\n\s*(?:Attributes|Args|Raises):", text)[0].split()))


def write_components(opened: Open) -> None:
    """Write the pages of `reference/` that follow from the command line's options."""
    parts = ["# Tasks\n\nSelect a task with `task=NAME`. The default is `train`.\n"]
    for name in choices_of("task"):
        target = target_of("task", name)
        needs = NEEDS[located(target, "task").needs]
        table_of = option_table("task", options_of(declared(target, "task")))
        parts.append(f"## {name}\n\n{explained('task', name)}\n\nNeeds: {needs}.\n\n{table_of}")
    write(opened, "reference/tasks.md", "\n".join(parts))

    parts = ["# Options of domains\n\nSelect a domain with `domain=NAME`. [Domains](domains.md) describes them.\n"]
    for name in choices_of("domain"):
        options = options_of(declared(target_of("domain", name), "domain"))
        parts.append(f"## {name}\n\n{explained('domain', name)}\n\n{option_table('domain', options)}")
    write(opened, "reference/domain-options.md", "\n".join(parts))

    parts = [
        "# Options\n\nSet an option with `key=value`. `python main.py --help` prints the options of the components "
        "that you choose, with their current values. The pages of [tasks](tasks.md), [domains](domain-options.md) and "
        "[encodings](../encodings/index.md) list their options.\n",
        f"## Settings outside groups\n\n{option_table('', options_of(Settings))}",
    ]
    for group, kind in OWN.items():
        summary = escaped((kind.__doc__ or "").strip().partition("\n")[0])
        parts.append(f"## {group}\n\n{summary}\n\n{option_table(group, options_of(kind))}")
        if group == "model":
            parts.extend(f"### model={name}\n\n{file_text('model', name)}" for name in choices_of("model"))
    write(opened, "reference/options.md", "\n".join(parts))

    parts = ["# Experiments\n\nAn experiment is a complete configuration. Select one with `experiment=NAME`.\n"]
    for name in choices_of("experiment"):
        parts.append(f"## {name}\n\n{file_text('experiment', name)}")
    write(opened, "reference/experiments.md", "\n".join(parts))


def file_text(group: str, name: str) -> str:
    """A configuration file: the comment at its beginning as a paragraph, then its settings."""
    lines = (CONFIGS / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = (line.removeprefix("# ") for line in lines if line.startswith("# ") and "@package" not in line)
    settings = (line for line in lines if line and not line.startswith("#"))
    return f"{escaped(' '.join(comment))}\n\n```yaml\n{chr(10).join(settings)}\n```\n"
