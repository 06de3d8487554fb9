"""From a Hydra configuration to objects, with every mistake reported in one line before anything is built."""

import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..core import stopping
from ..core.errors import UserError, explain_os_error, nearest, one_line, several, shortened
from ..core.options import REQUIRED, Options, checked, options_of, type_problem
from ..core.terminal import printable
from .settings import CONFIGS, GIVEN, Settings, declared, options_for
from .trust import KINDS, GoneError, located

NO_MEMORY = re.compile("out of memory|can't allocate memory")
NAMED = ("domain", "encoding", "model")  # groups by whose files runs are called


def asked(config: DictConfig, hydra: HydraConf) -> tuple[dict, Any]:
    """What a command asks for: the resolved configuration, with `names` of its files, and the task that it makes.

    Args:
        config: as composed, without `hydra`, which tells how it was.

    Raises:
        UserError: as `resolve`, `build` and `refuse_hidden_choices`.
    """
    overrides, choices = hydra.overrides.task, hydra.runtime.choices
    refuse_hidden_choices(overrides)
    plain = resolve(config, choices["encoding"], overrides)
    plain["names"] = {group: choices[group] for group in NAMED}
    return plain, build(plain["task"], "task")


def _option_problems(given: Any) -> Iterator[str]:
    if not isinstance(given, Mapping) or not all(isinstance(options, Mapping) for options in given.values()):
        yield f"encodings={given}: it should hold options by encoding, such as {{pope: {{delta_init: zero}}}}"
        return
    allowed = choices_of("encoding")
    for name, options in given.items():
        if name not in allowed:
            yield f"encodings.{name}: unknown encoding; {nearest(name, allowed)}allowed: {', '.join(allowed)}"
            continue
        target = cast("DictConfig", OmegaConf.load(CONFIGS / "encoding" / f"{name}.yaml"))["_target_"]
        for problem in _problems("encoding", {**options, "_target_": target}):
            yield f"encodings.{name}{problem.removeprefix('encoding')}"


def trusted_by(config: DictConfig, overrides: Sequence[str]) -> Any:
    """The packages that a command trusts.

    Args:
        config: as composed. overrides: settings of the command line.

    Raises:
        UserError: a file sets them, as a configuration from elsewhere may.
    """
    plain: Any = OmegaConf.to_container(config)
    packages = plain.get("trust")
    if packages is not None and "trust" not in map(key_of, overrides):
        raise UserError(f"trust={packages}: a file sets it, and only the command line may: leave it out of the file")
    return packages


def resolve(config: DictConfig, encoding: str | None = None, overrides: Sequence[str] = ()) -> dict:
    """Plain dictionaries of a composed configuration, each `_target_` block checked against its constructor.

    Whole numbers become floats where the constructor declares those: 1 and 1.0 are one setting, and so one run.
    `encodings`, by which an experiment gives options to single encodings, is not among them: of
    `encodings: {pope: {delta_init: zero}}`, `encoding.delta_init` is set if `encoding` is pope.

    Args:
        encoding: name of the chosen file of that group.
        overrides: settings of the command line, which win over `encodings`.

    Raises:
        UserError: names every unknown key, with the nearest allowed one, and every value of a wrong type or outside its
            range. What only a class's own signature declares is checked last, as importing it may take seconds.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    by_encoding = plain.pop("encodings", {})
    plain.pop("trust", None)  # `trusted_by` reads it
    problems = [*_option_problems(by_encoding)]
    for name, option in options_of(Settings).items():
        problems += type_problem(name, plain[name], option.kind) if name in plain else []
    if not problems:
        explicit = {key_of(override) for override in overrides}
        options = by_encoding.get(encoding, {}).items()
        plain["encoding"] |= {key: value for key, value in options if f"encoding.{key}" not in explicit}
    blocks = {**dict.fromkeys(KINDS), **plain}
    late = {group: block for group, block in blocks.items() if _imports_torch(group, block)}
    problems += [each for group in blocks if group not in late for each in _problems(group, blocks[group])]
    unread = () if problems else _unread_by(plain["task"], late.keys())
    if not problems:
        problems = [each for group in late if group not in unread for each in _problems(group, late[group])]
    if problems:
        raise UserError(several(problems))
    plain |= {key: os.path.expanduser(plain[key]) for key in ("run", "runs", "stores") if plain[key] is not None}
    return {group: block if group in unread else _as_declared(group, block) for group, block in plain.items()}


def _unread_by(task: Mapping, late: Set[str]) -> Collection[str]:
    """Those of the groups `late` that a task without a need of them leaves unread."""
    if not late - {"task"}:
        return ()
    try:
        needs = located(task["_target_"], "task").needs
    except UserError:  # which `_problems` reports
        return ()
    return late - {"task"} if needs == "nothing" else ()


def refuse_problems(config: Mapping, lenient: bool = False) -> None:
    """Check the groups of a configuration that was read from a file as those of a command line are.

    Args:
        lenient: it is read for a report, and was maybe made by another version: groups whose classes may import
            PyTorch are not checked; keys and classes that this version does not have are left as they are, and keys
            that it lacks too.

    Raises:
        UserError: as `resolve`.
    """
    groups = {group: config[group] for group in (KINDS.keys() - {"task"}) & config.keys()}
    if lenient:
        groups = {group: block for group, block in groups.items() if not _imports_torch(group, block)}
    if problems := [each for group, block in groups.items() for each in _problems(group, block, lenient)]:
        raise UserError(several(sorted(problems)))


def _problems(group: str, block: Any, lenient: bool = False) -> Iterator[str]:
    if group not in KINDS:
        if isinstance(block, Mapping) and group != "names":
            yield f"{group}: unknown key; allowed: {', '.join(KINDS)}"
        return
    if not isinstance(block, Mapping) or "_target_" not in block:
        yield f"{group}={shortened(block)}: it should hold settings and the _target_ that takes them"
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
            found.append(f"{group}.{key}: unknown key; {nearest(key, options)}allowed: {', '.join(options)}")
    yield from found
    lacking = [name for name, option in options.items() if option.default is REQUIRED and name not in block]
    if lacking and not lenient:
        yield f"{group}: it lacks {', '.join(lacking)}"
    if issubclass(by, Options) and not found and not lenient:
        try:
            by(**{key: value for key, value in block.items() if key in options})
        except ValueError as error:
            yield f"{group}.{error}"


def _imports_torch(group: str, block: Any) -> bool:
    """Whether checking a block imports the class that it names, and so maybe PyTorch, which takes seconds."""
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
    """Call a block's `_target_` with its keys and `given`; a ValueError becomes a UserError that names the group.

    Raises:
        UserError: also as `located`.
    """
    target = located(block["_target_"], group)
    arguments = {key: value for key, value in block.items() if not key.startswith("_")}
    try:
        return target(**arguments, **given)
    except ValueError as error:
        # An encoding's complaint about its sizes is about the model's keys.
        owner = "model" if group == "encoding" and str(error).split("=")[0] in GIVEN["encoding"] else group
        raise UserError(f"{owner}.{error}") from error


def refuse_hidden_choices(overrides: Sequence[str]) -> None:
    """Raise UserError where a command chooses a file of a group whose keys its experiment sets, and would so hide."""
    given = dict(each.split("=", 1) for each in overrides if "=" in each)
    file = CONFIGS / "experiment" / f"{given.get('experiment')}.yaml"
    if not file.exists():
        return
    sets = cast("DictConfig", OmegaConf.load(file))
    for group in ("model", "domain"):
        if group in given and isinstance(block := sets.get(group), DictConfig):
            keys = ", ".join(f"{group}.{key}" for key in block)
            raise UserError(
                f"{group}={given[group]}: experiment={given['experiment']} sets {keys} itself: leave one of the two "
                "out, or change single keys"
            )


def key_of(override: str) -> str:
    """The key that a setting of the command line names, such as `++domain.path=FILE`."""
    return override.lstrip("+~").split("=")[0]


def choices_of(group: str) -> list[str]:
    """Names of the files in `configs/group`."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def refuse_unknown_flags(arguments: Sequence[str]) -> None:
    """Raise UserError for a flag that Hydra does not have, or not with that value."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}: settings are written key=value, as trainer.steps=100 (python main.py --help)")

    parser.error = refuse
    _, unknown = parser.parse_known_args(arguments)
    if flags := [argument for argument in unknown if argument.startswith("-")]:
        refuse(f"{flags[0]}: unknown flag")


def explain(error: Exception) -> str | None:
    """One line for Hydra's and OmegaConf's own errors, and for memory that ran out; None for anything else."""
    if isinstance(error, OverrideParseException):
        if "=" not in str(error.override):
            return f"{error.override}: settings are written key=value, as encoding=rope (python main.py --help)"
        return (
            f"{error.override}: it cannot be read; put a value with signs in it into quotes of its own: \"key='value'\""
        )
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        return f"memory ran out ({one_line(error)}): take a smaller model, batch or length"
    if isinstance(error, RuntimeError) and "Could not detect" in str(error):  # submitit's, when it looks for srun
        return (
            "hydra/launcher=submitit_slurm: there is no srun here: start the sweep where jobs are submitted, or leave "
            "hydra/launcher out"
        )
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name}: {nearest(name, error.options)}allowed: {', '.join(sorted(error.options))}"
    if isinstance(error, ConfigCompositionException) and "Could not override '" in str(error):
        key = str(error).split("Could not override '")[1].split("'")[0].split("@")[0]
        keys = sorted(_keys_of(_defaults()))
        command = " ".join(["python main.py", *_given_choices(), "--cfg job"])
        return f"{key}: unknown key; {nearest(key, keys)}`{command}` lists all"
    if isinstance(error, HydraException | OmegaConfBaseException):
        return " ".join(str(error).split())
    return None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End a mistake with one line and a non-zero status; BEARINGS_TRACEBACK=1 shows where it arose."""
    try:
        yield
    except KeyboardInterrupt:
        stopping.say()
        sys.exit(stopping.STATUS)
    except Exception as error:
        if stopping.interrupted():
            stopping.say()
            sys.exit(stopping.STATUS)
        kind = error if isinstance(error, UserError) else UserError
        if isinstance(error, UserError):
            line = str(error)
        else:
            # Hydra's MissingConfigException is an OSError too, so that `explain` comes first.
            line = explain(error) or (explain_os_error(error) if isinstance(error, OSError) else None)
        if line is None or os.environ.get("BEARINGS_TRACEBACK"):
            raise
        print(f"{kind.prefix}{printable(line)}", file=sys.stderr)
        sys.exit(kind.exit_status)


def as_typed(value: Any) -> str:
    """A setting's value as a command line has it: `null`, `true`, `[0.9, 0.99]`; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _given_choices() -> list[str]:
    pairs = [argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument]
    return [f"{key}={value}" for key, value in pairs if value in choices_of(key)]


def _defaults() -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", overrides=_given_choices())


def _keys_of(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        if not str(key).startswith("_"):
            yield f"{prefix}{key}"
        child = config._get_node(key)
        if isinstance(child, DictConfig):
            yield from _keys_of(child, f"{prefix}{key}.")
