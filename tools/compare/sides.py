"""From what the command line names (a commit, a folder, a program) to a program that can run."""
import os
import pathlib
import subprocess
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "compare"


class BadArgument(Exception):
    """The command line names something that cannot be compared; one line."""


class BuildFailed(Exception):
    """A side could not be built; one line."""


@dataclass(frozen=True)
class Side:
    """What is compared: `kind` is commit, folder or program; `path` is the commit's worktree, the folder or the file."""
    kind: str
    path: pathlib.Path
    label: str


def git(*arguments):
    """(exit code, output) of git in this checkout."""
    result = subprocess.run(["git", "-C", str(ROOT), *map(str, arguments)], capture_output=True, text=True, check=False)
    return result.returncode, (result.stdout if result.returncode == 0 else result.stderr).strip()


def side_of(text, cache=CACHE):
    """What a word of the command line names. A path that exists comes before a commit of the same name."""
    path = pathlib.Path(text)
    if path.is_dir():
        return Side("folder", path.resolve(), text)
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise BadArgument(f"'{text}' is a file that cannot be run, expected a commit, a checkout or a tessera program")
        return Side("program", path.resolve(), text)
    code, sha = git("rev-parse", "--verify", "--quiet", "--short", f"{text}^{{commit}}")
    if code != 0:
        raise BadArgument(f"'{text}' is no commit of this checkout, and no folder or file, expected one of them")
    return Side("commit", cache / sha, f"{text} ({sha})")


def program_in(folder, preset):
    """Where a checkout has its program."""
    return folder / "build" / preset / "apps" / "tessera"


def shared_environment(folder, environment, root=ROOT):
    """Variables for a build in `folder`: another checkout uses the libtorch, the tools and the compiler's cache of this one."""
    if folder == root:
        return dict(environment)
    torches = sorted(root.glob(".venv/lib/python3*/site-packages/torch"))
    shared = {"CCACHE_DIR": str(root / ".cache" / "ccache"), **({"TESSERA_TORCH": str(torches[0])} if torches else {})}
    return {**shared, **environment, "PATH": f"{environment.get('PATH', os.defpath)}:{root / '.venv' / 'bin'}"}


def build(folder, preset, label):
    """Builds a checkout; the log lies beside the worktrees."""
    log = CACHE / f"build-{folder.name}-{preset}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"building {label} (log: {log})", flush=True)
    with log.open("w") as output:
        result = subprocess.run(["./run", "build", preset], cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT, env=shared_environment(folder, os.environ), check=False)
    if result.returncode != 0 or not program_in(folder, preset).exists():
        raise BuildFailed(f"building {label} ended with {result.returncode}: see {log}")


def make_worktree(side):
    """Checks a commit out, where that was not done before."""
    if (side.path / "run").exists():
        return
    side.path.parent.mkdir(parents=True, exist_ok=True)
    code, said = git("worktree", "add", "--force", "--detach", side.path, side.path.name)
    if code != 0:
        raise BuildFailed(f"git worktree add {side.path} ended with {code}: {said.splitlines()[-1]}")


def program_of(side, preset, may_build=True):
    """The program of a side, built where that is needed. A folder may have changed, so its build is brought up to date."""
    if side.kind == "program":
        return side.path
    program = program_in(side.path, preset)
    if side.kind == "commit" and program.exists():
        return program
    if may_build:
        if side.kind == "commit":
            make_worktree(side)
        elif not (side.path / "run").exists():
            raise BadArgument(f"'{side.label}' holds no ./run, expected a checkout")
        build(side.path, preset, side.label)
    if not program.exists():
        raise BadArgument(f"'{side.label}' is not built: expected {program}")
    return program
