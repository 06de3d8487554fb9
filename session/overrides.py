"""Settings as a command line writes them: `key=value`, and which of them are refused before they are composed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig

from ..core.errors import UserError
from .settings import CONFIGS, file_of


def key_of(override: str) -> str:
    """The key of a command-line setting: `domain.path` for `++domain.path=FILE`."""
    return override.lstrip("+~").split("=")[0]


def with_new_keys(settings: Sequence[str]) -> list[str]:
    """Add `++` to the settings of groups with a class that Hydra does not know: it requires this for new keys.

    The class is set on the command line, or in a file that is not in configs/.
    """
    given = {key_of(each): each.partition("=")[2] for each in settings}
    groups = {
        group
        for group in ("domain", "encoding")
        if f"{group}._target_" in given or not {*given.get(group, "").split(",")} <= {"", *choices_of(group)}
    }
    return [f"++{each}" if each.split(".")[0] in groups and "=" in each else each for each in settings]


def own_files_of(hydra_config: Any) -> str | None:
    """The folder of --config-dir; None without one."""
    sources = {each.provider: each.path for each in hydra_config.runtime.config_sources}
    return sources.get("command-line")


def choices_of(group: str, folder: str | Path | None = CONFIGS) -> list[str]:
    """Names of the files in `FOLDER/GROUP`; none if there is no folder."""
    return [] if folder is None else sorted(path.stem for path in (Path(folder) / group).glob("*.yaml"))


def as_typed(value: Any) -> str:
    """A value as written on the command line: `null`, `true`, `[0.9, 0.99]`, or plain text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_setting(key: str, value: Any) -> str:
    """`key=value` as Hydra reads it."""
    return f"{key}={as_value(value)}"


def as_value(value: Any) -> str:
    """The part of a setting after `=`, with quotes around text or a path that Hydra would not read as such."""
    if not isinstance(value, str | Path):
        return as_typed(value)
    text = str(value)
    with suppress(HydraException):
        if OverridesParser.create().parse_override(f"key={text}").value() == text:
            return text
    return QuotedString(text, Quote.single).with_quotes()


def refuse_unknown_flags(arguments: Sequence[str]) -> None:
    """Raise UserError for a flag that Hydra does not accept, or not with this value or another flag."""
    parser = get_args_parser()
    parser.allow_abbrev = False  # or --experiment would be Hydra's --experimental-rerun

    def refuse(message: str, example: str = "trainer.steps=100") -> NoReturn:
        raise UserError(f"{message}: write settings as key=value, such as {example} (see python main.py --help)")

    parser.error = refuse
    known, unknown = parser.parse_known_args(arguments)
    modes = ("run", "multirun", "cfg", "info", "shell-completion")
    if len(given := [f"--{mode}" for mode in modes if getattr(known, mode.replace("-", "_"))]) > 1:
        raise UserError(f"{' '.join(given)}: these flags exclude each other: give one of them")
    if known.resolve and not (known.cfg or known.help):
        refuse("--resolve: it needs --cfg job")
    if known.experimental_rerun and not Path(known.experimental_rerun).is_file():
        raise UserError(f"--experimental-rerun={known.experimental_rerun}: there is no such file: give a config.pickle")
    if flags := [argument for argument in unknown if argument.startswith("-")]:
        setting = flags[0].lstrip("-")
        refuse(f"{flags[0]}: unknown flag", *([setting] if "=" in setting else []))


def refuse_hidden_files(arguments: Sequence[str]) -> None:
    """Raise UserError if the folder of --config-dir has a file that Hydra would ignore for one of the same name."""
    own = get_args_parser().parse_known_args(arguments)[0].config_dir
    for file in sorted(Path(own).glob("*/*.yaml")) if own else ():
        if file.stem in choices_of(group := file.parent.name):
            raise UserError(f"{file}: {group}={file.stem} is the file in configs/{group}: give yours another name")


def refuse_no_choice(arguments: Sequence[str]) -> None:
    """Raise UserError for a group without a file, as `experiment=null` or `encoding=3`, or with a list of files."""
    parser = OverridesParser.create()
    for argument in arguments:
        group, is_setting, name = key_of(argument), "=" in argument, argument.partition("=")[2]
        if not is_setting or not (allowed := choices_of(group)):
            continue
        if name.startswith("["):
            raise UserError(f"{argument}: name one file, or add -m and leave out the brackets for a sweep over several")
        with suppress(HydraException):  # Hydra reports it
            values = [parser.parse_override(f"{group}={each}").value() for each in name.split(",")]
            if any(value in ("", None) or isinstance(value, int | float | dict) for value in values):
                raise UserError(f"{argument}: leave it out, or name a file; allowed: {', '.join(allowed)}")


def refuse_removals(arguments: Sequence[str]) -> None:
    """Raise UserError for Hydra's `~key`, which removes a key: no group can be missing, and options have defaults."""
    for argument in arguments:
        if argument.startswith("~"):
            key = key_of(argument)
            raise UserError(
                f"{argument}: settings cannot be removed: leave it out to use the default, or write {key}=VALUE"
            )


def refuse_hidden_choices(overrides: Sequence[str], own_files: str | None = None) -> None:
    """Raise UserError if a command chooses a file of a group whose keys its experiment sets: they would be hidden.

    Args:
        overrides: settings of the command line.
        own_files: the folder of --config-dir; None without one.
    """
    given = dict(each.split("=", 1) for each in overrides if "=" in each)
    experiment = given.get("experiment", "")
    files = [*_experiments(experiment, own_files)]
    for group in ("model", "domain"):
        blocks = [block for each in files if isinstance(block := each.get(group), DictConfig)]
        if group in given and blocks:
            keys = ", ".join(dict.fromkeys(f"{group}.{key}" for block in blocks for key in block))
            raise UserError(
                f"{group}={given[group]}: experiment={experiment} sets {keys} itself: leave out one of the "
                "two, or override single keys"
            )


def _experiments(name: str, own_files: str | None) -> Iterator[DictConfig]:
    """The contents of the file of an experiment, and of those in its defaults; nothing if there is no such file."""
    folder = next((each for each in (CONFIGS, own_files) if name in choices_of("experiment", each)), None)
    if folder is not None and isinstance(file := file_of("experiment", name, folder), DictConfig):
        yield file
        for base in file.get("defaults") or ():
            if isinstance(base, str):  # not a choice of another group
                yield from _experiments(base, own_files)


def refuse_unread(reads: Sequence[str], task: str, overrides: Sequence[str]) -> None:
    """Raise UserError for a setting that the task would ignore, because it reads only the keys `reads`."""
    known = ("task", "trust", *reads)
    ignored = [each for each in overrides if key_of(each).split(".")[0] not in known]
    if ignored:
        allowed = ", ".join(["task.*", "trust", *reads])
        setting = ignored[0].removeprefix("++")  # of `with_new_keys`
        raise UserError(f"{setting}: task={task} does not read this setting; it reads {allowed}")
