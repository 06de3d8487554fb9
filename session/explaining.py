"""Errors of a command in one line, including those of Hydra and OmegaConf."""

import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigIndexError, OmegaConfBaseException

from ..core import launcher, stopping
from ..core.errors import DivergedError, UserError, explain_os_error, nearest_key, one_line, suggestions
from ..core.plain_yaml import fault_of
from ..core.terminal import printable
from .overrides import as_setting, choices_of, key_of
from .settings import CONFIGS

NUMBERS = re.compile(r"[-+0-9.,eE\s]*")
NO_MEMORY = re.compile("out of memory|can't allocate memory|Storage size calculation overflowed")
NO_RESULT = re.compile(r"Job (\S+) .*has not produced any output \((state: [^)]+)\)", re.DOTALL)  # of submitit
# In messages of Hydra.
UNKNOWN_KEY = re.compile("Could not override '([^'@]*)")
NOT_MERGED = re.compile("Error merging override (.*)", re.DOTALL)
NO_POSITION = re.compile(r"invalid literal for int\(\) with base 10: '(.*)'")
AMBIGUOUS = re.compile("Ambiguous value for argument '(.*)'")


def explain(error: Exception, given: Sequence[str] | None = None) -> str | None:
    """One line for errors of Hydra and OmegaConf and for lack of memory; None for other errors.

    Args:
        given: the settings that led to the error; those of the command line by default.
    """
    if isinstance(error, OverrideParseException):
        return _not_parsed(str(error.override))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        return f"out of memory ({one_line(error)}): use a smaller model, batch or length"
    if isinstance(error, RuntimeError) and "Could not detect" in str(error):  # from submitit, which looks for srun
        return (
            "hydra/launcher=submitit_slurm: srun was not found: start the sweep on a SLURM login node, or leave out "
            "hydra/launcher"
        )
    if isinstance(error, RuntimeError) and type(error).__module__ == "submitit.core.utils":
        if found := NO_RESULT.match(str(error)):
            return (
                f"job {found[1]} of the sweep ended without a result ({found[2]}); its output may say why, and other "
                "jobs may still be running: rerun the command to try again"
            )
        return f"hydra/launcher=submitit_slurm: {one_line(error)}"
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _no_such_file(str(error.missing_cfg_file), error.options)
    settings = sys.argv[1:] if given is None else given
    if isinstance(error, ConfigCompositionException) and (found := UNKNOWN_KEY.search(str(error))):
        return _unknown_key(str(getattr(error.__cause__, "full_key", None) or found[1]), settings)
    if isinstance(error, ConfigCompositionException) and (found := NOT_MERGED.fullmatch(str(error))):
        if isinstance(error.__cause__, ConfigIndexError):
            return f"{found[1]}: the list has no such position: set the whole list"
        kind = "list" if getattr(error.__cause__, "object_type", None) is list else "mapping"
        return f"{found[1]}: it should be a {kind}"
    if isinstance(error, ValueError) and (found := NO_POSITION.fullmatch(str(error))):
        setting = next((each for each in settings if found[1] in key_of(each).split(".")), None)
        return setting and f"{setting}: {found[1]} is not a position in a list: set the whole list"
    if isinstance(error, HydraException) and (found := AMBIGUOUS.search(str(error))):
        if {"--help", "-h"} & {*settings}:
            return f"{found[1]}: --help explains the options of one run: give one value"
        return _ambiguous(found[1])
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"{mark.name} {fault_of(error)}: correct the file"
    if isinstance(error, HydraException | OmegaConfBaseException):
        return " ".join(str(error).split())
    return None


def _not_parsed(setting: str) -> str:
    """The message about a setting that Hydra cannot parse."""
    if "=" not in setting:
        return f"{setting}: write settings as key=value, such as encoding=rope (see python main.py --help)"
    key, value = setting.split("=", 1)
    if example := {"[": "['my folder',other]", "{": "{KEY:'my folder'}"}.get(value[:1]):
        return (
            f"{setting}: cannot be parsed; check its brackets, and put each text with special characters in quotes, "
            f'such as "{key}={example}"'
        )
    quoted = _in_shell(as_setting(key, value))
    return f"{setting}: cannot be parsed; put a value with special characters in quotes: {quoted}"


def _no_such_file(chosen: str, allowed: Iterable[str]) -> str:
    """The message about a choice `GROUP/NAME` without a configuration file."""
    group, _, name = chosen.rpartition("/")
    if name.startswith("submitit"):
        return f'{group}={name}: the launcher is not installed: pip install -e ".[slurm]"'
    elsewhere = [folder.name for folder in sorted(CONFIGS.iterdir()) if name in choices_of(folder.name)]
    meant = f"did you mean {elsewhere[0]}={name}? " if elsewhere else ""
    return f"{group}={name}: {meant}{suggestions('' if meant else name, sorted(allowed))}"


def _unknown_key(key: str, given: Sequence[str]) -> str:
    """The message about a `key` that the configuration with the settings `given` does not have."""
    if "--hydra-help" in sys.argv:
        return "--hydra-help takes no settings: leave them out"
    choices, keys = _without(key, given)
    chosen = next((each for each in choices if each.startswith(f"{key.partition('.')[0]}=")), "")
    if key == "encoding.window":
        if "encoding.layers" in keys:
            return f"{key}: {chosen} sets windows in encoding.layers: set them there"
        return f"{key}: {chosen or 'this encoding'} attends to all tokens: use another encoding, or leave it out"
    allowed = ", ".join(each for each in keys if each.startswith(f"{key.rpartition('.')[0]}."))
    if not allowed and key.startswith("task."):
        return f"{key}: unknown key; this task has no options: leave it out"
    command = " ".join(["python main.py", *choices, "--cfg job"])
    others = f"allowed: {allowed}" if allowed else f"`{command}` lists all keys"
    unknown = f"unknown key of {chosen}" if chosen else "unknown key"
    return f"{key}: {unknown}; {nearest_key(key, keys)}{others}"


def _ambiguous(setting: str) -> str:
    """The message about a setting with commas, which may be a sweep or a list."""
    key, _, values = setting.partition("=")
    if choices_of(key):
        return f"{setting}: for a sweep over these values, add -m"
    line = f"{setting}: for a sweep over these values, add -m; for a list, write {key}=[{values}]"
    if NUMBERS.fullmatch(values):
        return line
    return f"{line}; if the comma is part of the value, write {_in_shell(as_setting(key, values))}"


def line_of(error: Exception) -> str | None:
    """What the user reads of an error in one line; None if it is unexpected."""
    if isinstance(error, UserError):
        return str(error)
    return explain(error) or (explain_os_error(error) if isinstance(error, OSError) else None)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print errors as one line and exit with a non-zero status. BEARINGS_TRACEBACK=1 shows the traceback instead."""
    try:
        yield
    except KeyboardInterrupt:
        stopping.print_stopped()
        sys.exit(stopping.STATUS)
    except BrokenPipeError:  # the reader of the output has ended, as in `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing at exit would fail again
        sys.exit(1)
    except Exception as error:
        if stopping.interrupted():
            stopping.print_stopped()
            sys.exit(stopping.STATUS)
        kind, line = type(error) if isinstance(error, UserError) else UserError, line_of(error)
        if line is None or os.environ.get("BEARINGS_TRACEBACK"):
            raise
        if kind is not DivergedError or not launcher.rank():  # all ranks have the same loss
            print(f"{kind.prefix}{printable(line)}", file=sys.stderr)
        sys.exit(kind.exit_status)


def _in_shell(setting: str) -> str:
    """A setting as it is typed in a shell: in double quotes, which are easier to read, unless they would change it."""
    return shlex.quote(setting) if re.search(r'["$`\\!]', setting) else f'"{setting}"'


def _without(key: str, given: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Choices in `given`, of which a sweep has several, whose configuration has no `key`, and the keys that it has.

    They are the first ones with a similar key, if there are any.
    """
    pairs = [argument.split("=", 1) for argument in given if "=" in argument]
    values = [(group, value.split(",")) for group, value in pairs]
    groups = [[f"{group}={each}" for each in swept] for group, swept in values if {*swept} <= {*choices_of(group)}]
    found = [(choices, sorted(_keys_of(_defaults(choices)))) for choices in itertools.product(*groups)]
    found = [(choices, keys) for choices, keys in found if key not in keys] or found
    return next((each for each in found if nearest_key(key, each[1])), found[0])


def _defaults(choices: Sequence[str]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", overrides=[*choices])


def _keys_of(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        if not str(key).startswith("_"):
            yield f"{prefix}{key}"
        child = config._get_node(key)
        if isinstance(child, DictConfig):
            yield from _keys_of(child, f"{prefix}{key}.")
