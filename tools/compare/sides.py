"""Converts an argument of the command line (a commit, a folder or a program) to a program that can run."""
import os
import pathlib
import subprocess
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "compare"


class BadArgument(Exception):
    """Raised if an argument of the command line cannot be compared. The message is one line."""


class BuildFailed(Exception):
    """Raised if a side could not be built. The message is one line."""


@dataclass(frozen=True)
class Side:
    """One side of the comparison."""
    kind: str           # commit, folder or program
    path: pathlib.Path  # the worktree of the commit, the folder, or the program
    label: str


def git(*arguments):
    """Runs git in this checkout. Returns (exit code, output)."""
    result = subprocess.run(["git", "-C", str(ROOT), *map(str, arguments)], capture_output=True, text=True, check=False)
    return result.returncode, (result.stdout if result.returncode == 0 else result.stderr).strip()


def side_of(text, cache=CACHE):
    """Returns the side for an argument of the command line. An existing path takes precedence over a commit."""
    path = pathlib.Path(text)
    if path.is_dir():
        return Side("folder", path.resolve(), text)
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise BadArgument(f"'{text}' is a file that is not executable, expected a commit, a checkout or a tessera program")
        return Side("program", path.resolve(), text)
    code, sha = git("rev-parse", "--verify", "--quiet", "--short", f"{text}^{{commit}}")
    if code != 0:
        raise BadArgument(f"'{text}' is not a commit of this checkout, a folder or a file, expected one of them")
    return Side("commit", cache / sha, f"{text} ({sha})")


def program_in(folder, preset):
    """Returns the path of the program in a checkout."""
    return folder / "build" / preset / "apps" / "tessera"


def shared_environment(folder, environment, root=ROOT):
    """Returns the environment for a build in `folder`. Another checkout uses the libtorch, tools and ccache of this checkout."""
    if folder == root:
        return dict(environment)
    torches = sorted(root.glob(".venv/lib/python3*/site-packages/torch"))
    shared = {"CCACHE_DIR": str(root / ".cache" / "ccache"), **({"TESSERA_TORCH": str(torches[0])} if torches else {})}
    return {**shared, **environment, "PATH": f"{environment.get('PATH', os.defpath)}:{root / '.venv' / 'bin'}"}


def build(folder, preset, label):
    """Builds a checkout. The log is stored beside the worktrees."""
    log = CACHE / f"build-{folder.name}-{preset}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"building {label} (log: {log})", flush=True)
    with log.open("w") as output:
        result = subprocess.run(["./run", "build", preset], cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT, env=shared_environment(folder, os.environ), check=False)
    if result.returncode != 0 or not program_in(folder, preset).exists():
        raise BuildFailed(f"building {label} ended with {result.returncode}: see {log}")


def make_worktree(side):
    """Creates the worktree of a commit if it does not exist."""
    if (side.path / "run").exists():
        return
    side.path.parent.mkdir(parents=True, exist_ok=True)
    code, said = git("worktree", "add", "--force", "--detach", side.path, side.path.name)
    if code != 0:
        raise BuildFailed(f"git worktree add {side.path} ended with {code}: {said.splitlines()[-1]}")


def program_of(side, preset, may_build=True):
    """Returns the program of a side, and builds it if necessary. A folder may have changed, so it is always rebuilt."""
    if side.kind == "program":
        return side.path
    program = program_in(side.path, preset)
    if side.kind == "commit" and program.exists():
        return program
    if may_build:
        if side.kind == "commit":
            make_worktree(side)
        elif not (side.path / "run").exists():
            raise BadArgument(f"'{side.label}' contains no ./run, expected a checkout")
        build(side.path, preset, side.label)
    if not program.exists():
        raise BadArgument(f"'{side.label}' is not built: expected {program}")
    return program
