"""Builds objects from a Hydra configuration, and reports every mistake in one line before anything is built."""

import inspect
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..core.errors import UserError, nearest_key, several, shortened, suggestions
from ..core.options import REQUIRED, Options, checked, defaults_of, options_of
from .overrides import choices_of, key_of, refuse_hidden_choices, refuse_unread
from .pretrained import start_from_pretrained
from .settings import GIVEN, Settings, declared, file_of, options_for, reads_of, target_of
from .trust import KINDS, GoneError, located

NAMED = ("domain", "encoding", "model")  # groups whose file names are part of a run's path


def asked(
    config: DictConfig, overrides: Sequence[str], choices: Mapping[str, str], own_files: str | None = None
) -> tuple[dict, Any]:
    """The resolved configuration of a command, with the `names` of its files, and its task.

    Args:
        config: the composed configuration, without `hydra`.
        overrides: settings of the command line.
        choices: the name of the file that is chosen for each group.
        own_files: the folder of --config-dir; None without one.

    Raises:
        UserError: see `refuse_unread`, `refuse_hidden_choices`, `resolve` and `build`.
    """
    if (reads := reads_of(OmegaConf.select(config, "task._target_"))) is not None:
        refuse_unread(reads, choices["task"], overrides)
    refuse_hidden_choices(overrides, own_files)
    plain = resolve(config, choices, overrides, own_files)
    plain["names"] = {group: name_of(group, choices[group], plain[group]["_target_"]) for group in NAMED}
    if "pretrained" in plain:
        plain["names"]["model"] = plain["pretrained"]["name"]
    task = build(plain["task"], "task")
    return task.configured(plain), task


def name_of(group: str, choice: str, target: str) -> str:
    """The name of a group's file, or of its class if the command has replaced the class named in the file."""
    if choice not in choices_of(group):  # in a folder of --config-dir
        return choice
    named = file_of(group, choice).get("_target_", target)
    return choice if named == target else target.rpartition(".")[2]


def _option_problems(given: Any, own_files: str | None) -> Iterator[str]:
    if not isinstance(given, Mapping) or not all(isinstance(options, Mapping) for options in given.values()):
        yield f"encodings={given}: it should map encodings to options, such as {{pope: {{delta_init: zero}}}}"
        return
    ours, own = choices_of("encoding"), choices_of("encoding", own_files)
    for name, options in given.items():
        if name in own:  # its options are checked if it is chosen, because that imports its class
            continue
        if name not in ours:
            yield f"encodings.{name}: unknown encoding; {suggestions(name, [*ours, *own])}"
            continue
        for problem in _problems("encoding", {**options, "_target_": target_of("encoding", name)}):
            yield problem.replace("encoding", f"encodings.{name}", 1).replace(" encoding.", f" encodings.{name}.")


def trusted_by(config: DictConfig, overrides: Sequence[str]) -> Any:
    """The packages that a command trusts.

    Args:
        config: the composed configuration.
        overrides: settings of the command line.

    Raises:
        UserError: a configuration file sets `trust`; it may come from someone else.
    """
    plain: Any = OmegaConf.to_container(config)
    packages = plain.get("trust")
    if packages is not None and "trust" not in map(key_of, overrides):
        raise UserError(f"trust={packages}: only the command line may set it: remove it from the configuration file")
    return packages


def resolve(
    config: DictConfig,
    choices: Mapping[str, str] = MappingProxyType({}),
    overrides: Sequence[str] = (),
    own_files: str | None = None,
) -> dict:
    """A composed configuration as plain dictionaries, with each `_target_` block checked against its constructor.

    Integers become floats if the constructor declares a float: 1 and 1.0 are the same setting and give the same run.
    The key `encodings`, with which an experiment sets options of single encodings, is applied and removed:
    `encodings: {pope: {delta_init: zero}}` sets `encoding.delta_init` if the encoding is pope.

    Args:
        choices: the name of the file that is chosen for each group; none means those in configs/.
        overrides: settings of the command line; they take precedence over `encodings`.
        own_files: the folder of --config-dir; None without one.

    Raises:
        UserError: names every unknown key, with the nearest allowed one, and every value of a wrong type or outside its
            range. Classes without typed options are checked last, as importing them may take seconds.
    """
    given: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    plain: Any = {**dict.fromkeys(KINDS), **given}
    if unsound := [_unsound(group, plain[group]) for group in KINDS if not is_block(plain[group])]:
        raise UserError(several(unsound))
    by_encoding = plain.pop("encodings", {})
    plain.pop("trust", None)  # `trusted_by` reads it
    problems, pretrained = [*_option_problems(by_encoding, own_files)], None
    for name, option in options_of(Settings).items():
        problems += option.problems(plain[name]) if name in plain else []
    problems += _unknown_groups(plain)
    if not problems:
        explicit = {key_of(override) for override in overrides}
        options = by_encoding.get(choices.get("encoding"), {}).items()
        plain["encoding"] |= {key: value for key, value in options if f"encoding.{key}" not in explicit}
        pretrained = start_from_pretrained(plain, explicit)
    for group in ("domain", "encoding"):
        with suppress(UserError):  # `_problems` reports it
            if f"{group}._target_" in map(key_of, overrides):
                plain[group] = _of_own_class(group, plain[group], overrides)
            elif group in choices and choices[group] not in choices_of(group):  # in a folder of --config-dir
                plain[group] = _with_defaults(group, plain[group])
    late = {group: block for group, block in plain.items() if _imports_torch(group, block)}
    problems += [each for group in plain if group not in late for each in _problems(group, plain[group])]
    if not problems:
        problems = [each for group in late for each in _problems(group, late[group])]
    if problems:
        raise UserError(several(problems))
    plain |= {key: os.path.expanduser(plain[key]) for key in ("run", "runs", "stores") if plain[key] is not None}
    checked_blocks = {group: _as_declared(group, block) for group, block in plain.items()}
    return checked_blocks if pretrained is None else {**checked_blocks, "pretrained": pretrained}


def _unknown_groups(plain: Mapping) -> Iterator[str]:
    allowed, read_by_task = [*KINDS, *options_of(Settings)], plain["task"].items()
    for key, value in plain.items():
        if key == "experiment":
            yield f"{key}: unknown key; start the file of the experiment with the line # @package _global_"
        elif key not in allowed and (key, value) not in read_by_task:  # such as `study` of task=study
            yield f"{key}: unknown key; {suggestions(key, allowed)}"


def _of_own_class(group: str, block: Mapping, overrides: Sequence[str]) -> dict:
    """A block whose class a command has replaced, with the new class's defaults and without options that it lacks."""
    known = options_of(declared(block["_target_"], group))
    given = {key_of(override).removeprefix(f"{group}.") for override in overrides}
    return _with_defaults(group, {key: value for key, value in block.items() if key in known or key in given})


def _with_defaults(group: str, block: Mapping) -> dict:
    """A block with the defaults of its class, which Hydra does not know."""
    own = defaults_of(declared(block["_target_"], group)).items()
    defaults = {key: value for key, value in own if key not in GIVEN.get(group, ()) and _is_setting(value)}
    return {**defaults, **block}


def _is_setting(value: Any) -> bool:
    """Whether a default can be written to a configuration file."""
    return value is None or isinstance(value, bool | int | float | str | list)


def refuse_problems(config: Mapping, lenient: bool = False) -> None:
    """Check the groups of a configuration file in the same way as those of a command line.

    Args:
        lenient: for reports, whose runs may come from another version: groups with classes that may import PyTorch are
            not checked, and unknown or missing keys and unknown classes are accepted.

    Raises:
        UserError: see `resolve`.
    """
    groups = {group: config[group] for group in (KINDS.keys() - {"task"}) & config.keys()}
    if lenient:
        groups = {group: block for group, block in groups.items() if not _imports_torch(group, block)}
    if problems := [each for group, block in groups.items() for each in _problems(group, block, lenient)]:
        raise UserError(several(sorted(problems)))


def is_block(block: Any) -> bool:
    """Whether a group of a configuration has settings and names its class."""
    return isinstance(block, Mapping) and "_target_" in block


def _unsound(group: str, block: Any) -> str:
    return f"{group}={shortened(block)}: it should contain settings and a _target_"


def _problems(group: str, block: Any, lenient: bool = False) -> Iterator[str]:
    if group not in KINDS:  # a setting that belongs to no group
        return
    if not is_block(block):
        yield _unsound(group, block)
        return
    try:
        by = declared(block["_target_"], group)
    except UserError as error:
        if not (lenient and isinstance(error, GoneError)):
            yield str(error)
        return
    options = {name: option for name, option in options_of(by).items() if name not in GIVEN.get(group, ())}
    found = []
    for key, value in block.items():
        if key in options:
            found += options[key].problems(value, f"{group}.")
        elif key != "_target_" and not lenient:
            allowed = [f"{group}.{name}" for name in options]
            found.append(
                f"{group}.{key}: unknown key; {nearest_key(f'{group}.{key}', allowed)}allowed: {', '.join(allowed)}"
            )
    yield from found
    lacking = [name for name, option in options.items() if option.default is REQUIRED and name not in block]
    if lacking and not lenient:
        yield f"{group}: missing {', '.join(lacking)}"
    if issubclass(by, Options) and not found and not lenient:
        try:
            by(**{key: value for key, value in block.items() if key in options})
        except ValueError as error:
            yield with_group(error, group, options)


def _imports_torch(group: str, block: Any) -> bool:
    """Whether checking a block imports its class, which may import PyTorch and take seconds."""
    try:
        own = group not in KINDS or group == "domain" or not isinstance(block, Mapping)
        return not own and options_for(block.get("_target_"), group) is None
    except UserError:
        return False


def _as_declared(group: str, block: Any) -> Any:
    if group not in KINDS:
        return block
    options = options_of(declared(block["_target_"], group))
    return {key: checked(value, options[key].kind) if key in options else value for key, value in block.items()}


def build(block: Mapping, group: str, **given: Any) -> Any:
    """Call a block's `_target_` with its keys and `given`.

    Raises:
        UserError: the constructor does not accept these arguments, or raises ValueError; or see `located`.
    """
    target = located(block["_target_"], group)
    arguments = {key: value for key, value in block.items() if not key.startswith("_")}
    try:
        inspect.signature(target).bind(**arguments, **given)
    except TypeError as error:
        accepts = ", ".join([*given, *arguments])
        raise UserError(
            f"{group}._target_={block['_target_']}: its constructor must accept {accepts} ({error})"
        ) from error
    try:
        return target(**arguments, **given)
    except ValueError as error:
        # Sizes of an encoding are keys of the model.
        sizes = group == "encoding" and str(error).split("=")[0] in GIVEN["encoding"]
        owner, keys = ("model", GIVEN["encoding"]) if sizes else (group, arguments)
        raise UserError(with_group(error, owner, keys)) from error


def with_group(error: ValueError, group: str, keys: Collection[str]) -> str:
    """The message of a class, which names a key first, with `group` before each of its `keys` that has a value.

    A message of an encoding in a pattern names a key of one of the `layers`.
    """
    if "layers" in keys and re.split("[=:]", str(error))[0] not in keys:
        return f"{group}.layers: {error}"
    return f"{group}." + re.sub(rf"(?<=[ (])(?=(?:{'|'.join(keys)})=)", f"{group}.", str(error))
