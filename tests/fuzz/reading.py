"""Reads one mutant after another in this process, and sees what else than reading happens."""

import contextlib
import io
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import run_targets, targets, trees
from .outcomes import FaultError, check_line, judge

MEMORY = 1 << 30  # bytes above what the original takes
ADDRESSES = 4 << 30  # bytes of address space above a new worker's; what is only reserved counts here too
DRAWN = 40  # of so many reports one is drawn, the others stop short of the pictures
REPOSITORY = str(Path(__file__).parents[2])
HARMLESS = ("git", "uname", "ldconfig", "lscpu")
STARTS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn", "socket.connect")
WRITES = (
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "shutil.rmtree",
    "os.chmod",
)


@dataclass(frozen=True)
class Result:
    """What became of a mutant: an outcome and, for an error its line, for a fault its kind, place and traceback."""

    target: str
    index: int
    change: str
    outcome: str
    line: str = ""
    kind: str = ""
    place: str = ""
    trace: str = ""
    seconds: float = 0.0


@dataclass
class Watch:
    """An audit hook: notes and refuses processes, connections, and writes outside `root`, while `on`."""

    root: str
    on: bool = False
    seen: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event in STARTS:
            program = arguments[1] if event == "subprocess.Popen" and len(arguments) > 1 else arguments
            program = program[0] if isinstance(program, list | tuple) and program else program
            harmless = os.path.basename(str(program)) in HARMLESS
        elif event == "open":
            path, mode, flags = arguments
            writes = set(mode or "") & set("wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            harmless = not writes or self._inside(path)
        else:
            harmless = event not in WRITES or all(map(self._inside, arguments[:2]))
        if harmless:
            return
        self.seen.append(f"{event} {arguments!r}"[:300])
        raise PermissionError(f"the fuzz harness refuses {event}")

    def _inside(self, path: object) -> bool:
        """Whether a write there is the reader's own business; a number is a file that is open already."""
        if not isinstance(path, str | bytes):
            return True
        path = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        return path.startswith((self.root, "/dev", "/proc")) or "__pycache__" in path or "/.cache" in path


class Reader:
    """Reads mutants in this process; `root` holds the templates, `place` is this worker's own folder."""

    def __init__(self, root: Path, place: Path, seed: int):
        self.root, self.place, self.seed = root, place, seed
        self.originals: dict[str, Mapping] = {}
        self.watch = Watch(os.path.realpath(root))
        sys.addaudithook(self.watch)
        self.mark = place / "MARK"
        for folder in (place / "cwd", place / "modules", place / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        trees.leave_sentinel(place / "modules", self.mark)
        sys.path.append(str(place / "modules"))
        os.environ["TMPDIR"] = str(place / "tmp")
        tempfile.tempdir = str(place / "tmp")
        os.chdir(place / "cwd")
        for path in root.glob("*.*"):  # sources, which configurations name without their folder
            shutil.copy(path, place / "cwd")

    def read_original(self, name: str) -> None:
        """Learn the figures that mutants of a target are compared with, and the memory that they take."""
        if name not in self.originals:
            case = targets.copy_of(self.root, targets.TARGETS[name], self.place)
            with drawing(False), quiet() as errors:
                try:
                    run_targets.write_all = True
                    self.originals[name] = targets.TARGETS[name].read(case)
                except SystemExit as end:
                    raise RuntimeError(errors.getvalue()) from end
                finally:
                    run_targets.write_all = False
            self.normal = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def mutate(self, name: str, index: int) -> tuple[Path, str]:
        """A new copy of a target's template with one file changed, and the change."""
        case = targets.copy_of(self.root, targets.TARGETS[name], self.place)
        rng = targets.rng_of(self.seed, name, index)
        return case, targets.TARGETS[name].mutate(case, rng, self.place / "outside")

    def read(self, name: str, index: int, case: Path, change: str) -> Result:
        """What becomes of the mutant at `case`."""
        target = targets.TARGETS[name]
        self.watch.seen.clear()
        sys.modules.pop(trees.SENTINEL, None)
        began = time.monotonic()
        with drawing(index % DRAWN == DRAWN - 1), quiet() as errors:
            self.watch.on = True
            try:
                facts = self._outcome(target, case, errors)
            finally:
                self.watch.on = False
        ran = self.mark.exists() or any(Path().rglob("FUZZ")) or self.watch.seen
        if ran:
            facts = {
                "outcome": "fault",
                "kind": "code",
                "line": "; ".join(self.watch.seen) or "a module or a call of the file ran",
            }
            self.mark.unlink(missing_ok=True)
            for left in Path().rglob("FUZZ"):
                left.unlink()
        elif (more := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.normal) * 1024 > MEMORY:
            facts = {
                "outcome": "fault",
                "kind": "memory",
                "line": f"{more / 2**20:.1f} GB above normal ({facts['outcome']})",
            }
        return Result(name, index, change, seconds=time.monotonic() - began, **facts)

    def _outcome(self, target: targets.Target, case: Path, errors: io.StringIO) -> dict:
        from bearings.core.errors import UserError

        try:
            outcome, line = judge(self.originals[target.name], target.read(case), target.pinned)
            if outcome == "silent":
                return {
                    "outcome": "fault",
                    "kind": "silent change",
                    "line": line,
                    "place": line.split(":")[0].split(" ")[-1],
                }
            return {"outcome": outcome, "line": line}
        except (UserError, SystemExit) as error:
            text = errors.getvalue()
            line = text[text.rfind("error: ") + 7 :].strip("\n") if isinstance(error, SystemExit) else str(error)
            try:
                check_line(line)
            except FaultError as fault:
                return fault_of(fault, str(fault))
            return {"outcome": "error", "line": line}
        except BaseException as error:
            return fault_of(error, str(error))


def limit_memory() -> None:
    """Let this process take no more than ADDRESSES beyond what it has, and leave no core file."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESSES, size + ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def fault_of(error: BaseException, line: str) -> dict:
    kind = type(error).__name__
    if isinstance(error, FaultError):
        kind, line = line.split(": ", 1)
    if isinstance(error, MemoryError):
        kind = "memory"
    import bearings

    places = [
        f"{Path(frame.filename).relative_to(root)}:{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        for root in dict.fromkeys([*bearings.__path__, REPOSITORY])
        if frame.filename.startswith(f"{root}/") and "site-packages" not in frame.filename
    ]
    place = next(iter([each for each in places if not each.startswith("tests/fuzz")][::-1] or places[::-1]), "")
    trace = "".join(traceback.format_exception(error))
    return {
        "outcome": "fault",
        "kind": kind,
        "line": " ".join(line.split())[:300],
        "place": place,
        "trace": trace[-20_000:],
    }


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Catch what is printed; gives what goes to stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        yield errors


@contextlib.contextmanager
def drawing(whole: bool) -> Iterator[None]:
    """Plots are laid out and drawn, or files without content take their place."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    drawn, laid_out = Figure.savefig, ConstrainedLayoutEngine.execute
    if not whole:
        Figure.savefig = lambda figure, path, **_: Path(path).write_text("<svg/>")
        ConstrainedLayoutEngine.execute = lambda engine, figure: None
    try:
        yield
    finally:
        Figure.savefig, ConstrainedLayoutEngine.execute = drawn, laid_out
