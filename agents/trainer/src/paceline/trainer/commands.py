"""`paceline run`: start a job so that every process of it observes itself."""

import argparse
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Mapping
from importlib.util import find_spec

from paceline.contracts.agent_socket import SOCKET_VARIABLE, default_socket_path
from paceline.contracts.recording import RECORDING_BYTES_MIN
from paceline.contracts.sizes import parse_size
from paceline.trainer.nccl_found import Family, FoundNccl, find_nccl, read_conf, shm_bytes
from paceline.trainer.nccl_plan import Files, NcclPlan, plan_nccl
from paceline.trainer.settings import is_disabled
from paceline.trainer.supervisor.launch import NoFolder, supervised

EPILOG = """\
examples:
  paceline run -- python train.py
  paceline run --name llama-7b -- torchrun --nproc-per-node 8 train.py
  paceline run --repair -- torchrun ...          a lost rank is replaced while the job runs
  paceline run --record DIR -- torchrun ...      no platform: then `paceline diagnose DIR`
  paceline run --dry-run -- torchrun ...         what would be observed, and why not more
  eval "$(paceline run --print-env)"             for those who launch otherwise
"""
NOT_EXECUTABLE = 126
NOT_FOUND = 127
USAGE = 2


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `paceline run`."""
    parser = subparsers.add_parser(
        "run",
        help="observe a training job, no change to its script",
        epilog=EPILOG,
        usage="paceline run [options] -- COMMAND ...",
    )
    parser.add_argument(
        "--job-id", metavar="ID", help="groups the ranks (default: Slurm, Kubernetes, torchrun)"
    )
    parser.add_argument("--name", help="what people call the job")
    parser.add_argument("--socket", metavar="PATH", help="socket of the agent on this node")
    parser.add_argument(
        "--record", metavar="DIR", help="no platform: keep samples in DIR, one file a node, for diagnose"
    )
    parser.add_argument(
        "--record-max", metavar="SIZE", default="64M", help="of each node; the oldest go (default 64M)"
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="a supervisor for each rank: a lost one is replaced",
    )
    parser.add_argument(
        "--standby", action="store_true", help="as --repair, as a warm standby of --job-id without a rank"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be set, run nothing")
    parser.add_argument(
        "--print-env", action="store_true", help="print export lines for a shell, run nothing"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run, after --")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command; returns only where that is impossible or not asked for."""
    command = list(arguments.command)
    if command[:1] == ["--"]:
        command = command[1:]
    only_shown = arguments.dry_run or arguments.print_env
    status = _check(arguments, command, only_shown)
    if status is not None:
        return status
    records = arguments.record is not None and not only_shown
    socket_path = _record(arguments) if records else arguments.socket
    environment = run_environment(os.environ, arguments.job_id, arguments.name, socket_path)
    plan = nccl_plan(command[0] if command else sys.executable, environment)
    environment.update(plan.variables)
    for line in plan.lines():
        say(line)
    repairs = arguments.repair or arguments.standby
    if repairs and command:
        try:
            launch = supervised(command, environment, standby=arguments.standby)
        except NoFolder as error:
            say(f"nothing is repaired: {error.strerror or error}")
        else:
            command, environment = launch.command, launch.environment
            if launch.warning:
                say(launch.warning)
    own = arguments.record is not None and (only_shown or socket_path is not None)  # it listens in a moment
    for warning in warnings(environment, own_agent=own):
        say(warning)
    if only_shown:
        show(changes(os.environ, environment), as_exports=arguments.print_env)
        return 0
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        say(f"{command[0]!r} could not be started: {error.strerror}")
        return NOT_EXECUTABLE


def _check(arguments: argparse.Namespace, command: list[str], only_shown: bool) -> int | None:
    """The exit status of what cannot be run, else None."""
    if not command and not only_shown:
        say("no command; write it after --, for example: paceline run -- python train.py")
        return USAGE
    if command and shutil.which(command[0]) is None:
        say(f"{command[0]!r} was not found on PATH and is not an executable file")
        return NOT_FOUND
    if arguments.standby and not (arguments.job_id or os.environ.get("PACELINE_JOB_ID")):
        say("--standby: whose? give --job-id, the same as the job's")
        return USAGE
    if arguments.record is None:
        return None
    if arguments.socket is not None:
        say("--record brings an agent of its own; leave --socket out")
        return USAGE
    if arguments.print_env:
        say("--record follows one command; leave --print-env out")
        return USAGE
    try:
        parse_size(arguments.record_max, RECORDING_BYTES_MIN)
    except ValueError as error:
        say(f"--record-max: {error}")
        return USAGE
    return None


def nccl_plan(program: str, environment: Mapping[str, str]) -> NcclPlan:
    """What is turned on for the NCCL that `program` will load."""
    if is_disabled(environment):
        return plan_nccl(FoundNccl(Family.UNKNOWN, why="not asked"), environment, Files(None, None))
    plugin, shim = native_files()
    files = Files(plugin, shim, read_conf(environment), shm_bytes())
    return plan_nccl(find_nccl(program, environment), environment, files)


def native_files() -> tuple[str | None, str | None]:
    """Paths of the profiler plugin and of the preload shim, None for what this installation has not."""
    try:
        from paceline.probe import nccl
    except ImportError:
        return None, None
    found = (nccl.plugin_path(), nccl.shim_path())
    plugin, shim = (None if path is None else str(path.absolute()) for path in found)
    return plugin, shim


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Variables of `after` that `before` has not, or has otherwise."""
    return {name: text for name, text in after.items() if before.get(name) != text}


def show(variables: Mapping[str, str], *, as_exports: bool) -> None:
    """One variable a line on stdout, quoted for a POSIX shell."""
    prefix = "export " if as_exports else ""
    for name, text in sorted(variables.items()):
        sys.stdout.write(f"{prefix}{name}={shlex.quote(text)}\n")


def _record(arguments: argparse.Namespace) -> str | None:
    """The socket of the agent that records; None, and said why, where there is none: the job runs all the
    same."""
    from paceline.trainer.recording import NotRecorded, start_recorder

    try:
        return start_recorder(arguments.record, arguments.record_max, os.environ)
    except (NotRecorded, OSError) as error:
        say(f"nothing is recorded: {error}")
        return None


def say(text: str) -> None:
    sys.stderr.write(f"paceline run: {text}\n")


def run_environment(
    environment: Mapping[str, str], job_id: str | None, name: str | None, socket_path: str | None
) -> dict[str, str]:
    """The environment of the command: what is asked for wins over what was there."""
    changed = dict(environment)
    changed["PACELINE"] = "1"
    changed[SOCKET_VARIABLE] = socket_path or environment.get(SOCKET_VARIABLE) or default_socket_path()
    if job_id:
        changed["PACELINE_JOB_ID"] = job_id
    if name:
        changed["PACELINE_NAME"] = name
    return changed


def _no_agent(path: str, error: OSError) -> str:
    return (
        f"no agent at {path} ({error.strerror}); the job runs and is observed as soon as one listens there"
        " (start it with: paceline agent)"
    )


def warnings(environment: Mapping[str, str], *, own_agent: bool = False) -> list[str]:
    """What will keep the job from being observed; it runs all the same."""
    found = []
    path = environment[SOCKET_VARIABLE]
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            found.append(f"{path} is no socket; expected the agent's socket")
    except OSError as error:
        if not own_agent:
            found.append(_no_agent(path, error))
    if is_disabled(environment):
        found.append("PACELINE_DISABLED is set: the job is not observed")
    if environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        found.append("TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch loads no extension; call attach() in the script")
    if find_spec("paceline.probe") is None:
        found.append(
            "the native probe is not installed (pip install paceline-probe): the job is not observed"
        )
    return found
