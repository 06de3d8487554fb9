"""The text of `--help`: each option with its value, type, range, default and explanation."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hydra._internal.hydra import Hydra
from omegaconf import DictConfig, OmegaConf

from ..core.about import MECHANISMS
from ..core.errors import UserError
from ..core.options import REQUIRED, Option, options_of
from .configuration import NAMED, is_block, name_of, trusted_by
from .overrides import as_typed, choices_of, own_files_of
from .settings import GIVEN, Settings, declared, mechanism_of, reads_of
from .trust import KINDS, trusting

CHOICES = ("domain", "encoding", "task", "model", "experiment")
WIDTH, INDENT = 80, " " * 6


def choices_text(*, _root_: DictConfig) -> str:
    """The choices of each group of configuration files; encodings are grouped by mechanism."""
    own = own_files_of(_root_.hydra)
    return "\n".join(_choices_of(group, [*choices_of(group), *choices_of(group, own)]) for group in CHOICES)


def _choices_of(group: str, names: Sequence[str]) -> str:
    if group != "encoding":
        return _wrapped(f"{group}: {', '.join(names)}", "  ")
    mechanisms = {name: mechanism_of(name) or "other" for name in names}
    lines = ["  encoding:"]
    for mechanism in (*MECHANISMS, "other"):
        if names := [name for name, its in mechanisms.items() if its == mechanism]:
            lines.append(_wrapped(f"{mechanism}: {', '.join(names)}", "    "))
    return "\n".join(lines)


def options_text(*, _root_: DictConfig) -> str:
    """The options that the task of a configuration reads; `$` is doubled, as Hydra's help template requires."""
    choices, overrides = _root_.hydra.runtime.choices, _root_.hydra.overrides.task
    plain: Any = OmegaConf.to_container(_root_)
    reads = reads_of(plain["task"]["_target_"]) if is_block(plain.get("task")) else None
    options = options_of(Settings)
    shown = [group for group in KINDS if is_block(plain.get(group)) and (reads is None or group == "task")]
    if reads is not None:
        options = {name: option for name, option in options.items() if name in ("trust", *reads)}
    with trusting(trusted_by(_root_, overrides)):
        groups = [_group(group, choices.get(group), _resolved(_root_[group])) for group in shown]
    settings = _section("", "Settings that belong to no group:", plain, options)
    return "\n\n".join([settings, *groups]).replace("$", "$$")


def _resolved(block: DictConfig) -> Any:
    return OmegaConf.to_container(block, resolve=True)


def _group(group: str, choice: str | None, block: Mapping) -> str:
    target = block["_target_"]
    own = choice is not None and group in NAMED and name_of(group, choice, target) != choice
    title = f"{group}._target_={target}" if own else f"{group}={choice}" if choice else group
    try:
        by = declared(target, group)
    except UserError as error:  # a class that is not trusted or does not exist
        return str(error)
    options = {name: option for name, option in options_of(by).items() if name not in GIVEN.get(group, ())}
    summary = (by.__doc__ or "").strip().partition("\n")[0]
    return _section(f"{group}.", f"{title}: {summary}", block, options)


def _section(prefix: str, title: str, values: Mapping, options: Mapping[str, Option]) -> str:
    lines = [title]
    for name, option in options.items():
        default = list(option.default) if isinstance(option.default, tuple) else option.default
        value = values.get(name, default)
        usual = "" if default in (value, REQUIRED) else f"; default {as_typed(default)}"
        takes = f"{option.accepts}{usual}"
        lines.append(_wrapped(f"{prefix}{name}={as_typed(value)} ({takes})", "  "))
        lines.append(_wrapped(option.explanation, INDENT))
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


# Hydra would read every file of choices twice, which takes 4 s, to list them for templates that use its own lists.
Hydra.format_config_groups = lambda *_, **__: ""
OmegaConf.register_new_resolver("help.choices", choices_text)
OmegaConf.register_new_resolver("help.options", options_text)
