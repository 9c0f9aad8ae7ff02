"""What every file that starts a launch is made of: its nodes, what it asks the user for, what each node runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.launch.launch_file import Launch, Start
from dovetail.plans.launch_limits import LAUNCHES

#: What to write in place of a value that only the user knows, where the file cannot leave it out.
FILL_IN = "FILL_IN"

#: Chips of one host, where the innermost network tier spans several hosts.
_HOST_CHIPS = {"gb200": 4, "gb300": 4} | {f"tpu-{version}": 4 for version in ("v3", "v4", "v5e", "v5p", "v6e", "v7x")}

_PORT = 29500
#: Options and `key=value` settings of a program.
_OPTION = re.compile(r"--|[A-Za-z_]\w*=")
#: What a shell acts on inside `"${NAME:?…}"`.
_SPECIAL = re.compile(r"[\\\"'$`}]")


@frozen
class NodeLaunch:
    """A launch on the nodes of a cluster: one command on each, which starts a process for every chip."""

    target: str
    start: Start
    #: all that has to be in the folder it starts from: name → text
    files: Mapping[str, str]
    cluster: Cluster
    nodes: int
    chips_per_node: int
    #: the launch file's name
    launch_file: str
    #: the framework with its version
    framework: str

    @property
    def name(self) -> str:
        """A name for the job: a DNS label (RFC 1123), short enough for the number of a node behind it."""
        words = f"{self.target}-{self.cluster.chips}-{self.cluster.chip.name}".lower()
        return re.sub(r"[^a-z0-9]+", "-", words)[:50].strip("-")

    @property
    def title(self) -> str:
        """What runs on how many chips."""
        chips = f"{_number(self.cluster.chips, 'chip')} ({_one_line(self.cluster.chip.name)})"
        return f"{self.framework} on {chips}: {_number(self.nodes, 'node')} of {self.chips_per_node}"


def on_nodes(launch: Launch, target: str, cluster: Cluster, version: str | None = None) -> NodeLaunch:
    """A launch on a cluster's nodes; one that does not say how it is started is refused."""
    framework = version or _framework(target)
    if launch.start is None:
        what = f"is not possible: the launch for {framework} does not say how it is started"
        raise InputError("--as", what, "leave it out to get the launch file alone")
    innermost = cluster.tiers[0].size if cluster.tiers else 1
    most = min(innermost, _HOST_CHIPS.get(cluster.chip.name, innermost))
    chips_per_node = max(size for size in range(1, most + 1) if innermost % size == 0)
    files = dict(launch.start.files)
    if launch.start.launcher == "accelerate":
        files.setdefault(launch.name, launch.text)  # its --config_file
    nodes = cluster.chips // chips_per_node
    return NodeLaunch(target, launch.start, files, cluster, nodes, chips_per_node, launch.name, framework)


def heading(launch: NodeLaunch, usage: Iterable[str], fill_in: Mapping[str, str]) -> list[str]:
    """Comment lines: what this is, how to start it, and what to fill in before: the launch's and the kind's own."""
    lines = [launch.title, *usage]
    asked = {**launch.start.fill_in, **fill_in}
    if asked:
        width = max(map(len, asked))
        lines += ["", "Fill in before you start:"]
        lines += [f"  {name:{width}}  {_one_line(what)}" for name, what in asked.items()]
    return [f"# {line}".rstrip() for line in lines]


def check(name: str, what: str) -> str:
    """Ends a script where a variable is empty, with what to put there."""
    message = _SPECIAL.sub(r"\\\g<0>", _one_line(what))
    return f': "${{{name}:?{message}}}"'


def checks(launch: NodeLaunch) -> list[str]:
    """Ends a script where the user has not filled in a variable."""
    return [check(name, what) for name, what in launch.start.fill_in.items()]


def port() -> str:
    """The port at which processes meet, unless the user says another."""
    return f'export MASTER_PORT="${{MASTER_PORT:-{_PORT}}}"'


def exports(launch: NodeLaunch) -> list[str]:
    """The variables of the environment the launch needs."""
    return [f"export {name}={shlex.quote(value)}" for name, value in launch.start.environment.items()]


def written_files(launch: NodeLaunch, *, shared: bool = False) -> Iterator[str]:
    """Writes the launch's files; in one step each where several nodes write into a folder they share."""
    for name, text in launch.files.items():
        path = shlex.quote(name)
        draft = f'{path}."$NODE_RANK"' if shared else path
        end = _end_word(text)
        yield from ("", f"cat > {draft} <<'{end}'", *text.rstrip("\n").split("\n"), end)
        if shared:
            yield f"mv {draft} {path}"


def node_command(launch: NodeLaunch) -> list[str]:
    """Starts the processes of a node; needs NODE_RANK, MASTER_ADDR and MASTER_PORT."""
    before, launcher = _LAUNCHERS[launch.start.launcher](launch)
    start = launch.start
    program = ("python", *start.program) if start.launcher == "python" else start.program
    first, *others = [*launcher, *_option_lines(program)]
    lines = [first, *(f"    {line}" for line in others)]
    return [*before, *(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _torchrun(launch: NodeLaunch) -> tuple[list[str], list[str]]:
    return [], [
        f"torchrun --nnodes {launch.nodes} --nproc_per_node {launch.chips_per_node}",
        '--node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT"',
    ]


def _deepspeed(launch: NodeLaunch) -> tuple[list[str], list[str]]:
    before: list[str] = []
    nodes = f"--num_nodes {launch.nodes} --num_gpus {launch.chips_per_node}"
    if launch.nodes > 1:
        before = [
            "# DeepSpeed counts the nodes in this file; with --no_ssh it does not use their names.",
            f"seq -f 'node%.0f slots={launch.chips_per_node}' {launch.nodes} > hostfile.\"$NODE_RANK\"",
        ]
        nodes = f'--hostfile hostfile."$NODE_RANK" {nodes}'
    return before, [
        f"deepspeed --no_ssh {nodes}",
        '--node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT"',
    ]


def _accelerate(launch: NodeLaunch) -> tuple[list[str], list[str]]:
    return [], [
        f"accelerate launch --config_file {shlex.quote(launch.launch_file)}",
        f"--num_machines {launch.nodes} --num_processes {launch.cluster.chips}",
        '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"',
    ]


def _python(launch: NodeLaunch) -> tuple[list[str], list[str]]:
    """One process for all chips of a node; MaxText reads these variables."""
    before = [
        f"export NODE_RANK NNODES={launch.nodes}",
        'export JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT"',
    ]
    return before, []


_LAUNCHERS = {"torchrun": _torchrun, "deepspeed": _deepspeed, "accelerate": _accelerate, "python": _python}


def _option_lines(words: Iterable[str]) -> list[str]:
    """A program's words: an option with its values on each line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if _OPTION.match(word):
            lines.append([])
        lines[-1].append(word)
    return [" ".join(line) for line in lines if line]


def _framework(target: str) -> str:
    limits = LAUNCHES[target]
    return limits.version if limits.version.startswith(limits.title) else f"{limits.title} ({limits.version})"


def _end_word(text: str) -> str:
    """A word that ends a text in a script: no line of the text."""
    end = "EOF"
    while end in text.split("\n"):
        end += "_"
    return end


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _one_line(text: str) -> str:
    return " ".join(text.split())
