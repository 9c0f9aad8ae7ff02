"""Chakra execution traces of a simulated step, as ASTRA-sim reads them: a file per rank, and the process groups.

What the files say:

- `data_deps` are what a task of the simulation waits for; `ctrl_deps` the node before it on its stream, if that ended
  before this one began. Nodes are numbered in the order in which they began.
- `duration_micros` is what was simulated, rounded at both ends, so that durations of a stream add up. Kernels also have
  `num_ops` and `tensor_size` (bytes from and to memory), where a node is one operator.
- `comm_size` of a collective is its input on one rank (of an all-gather the shard), in whole bytes. Where a part of
  a collective overlaps computation, both parts are nodes. The bytes of a process group are the sum of `comm_size` over
  its collectives, each once, as any one of its ranks has them; a permute of ring attention is a send to the next rank
  and a receive from the previous one, with the bytes a rank sends round the ring, of which the send counts.
- Transfers between stages are sends and receives with the same tag, and belong to no group.

Left out, as the simulation has no message for it: the few bytes by which the gradient norm is agreed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dovetail import __version__, frameworks
from dovetail.arrays import largest
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan
from dovetail.simulation.chakra_format import VERSION, framed, int32, metadata, string
from dovetail.simulation.chakra_nodes import Partner, Partners, StageNode, StepWorks, stage_nodes
from dovetail.simulation.chakra_ranks import PlanRanks
from dovetail.simulation.chakra_work import TaskKey, TaskWork, task_works, tied_bytes
from dovetail.simulation.simulate import step_writer
from dovetail.simulation.task_graph import run
from dovetail.step.evaluate import ProfiledJob, Step, profiled_job, step_from
from dovetail.step.facts import plan_facts
from dovetail.step.stages import layer_counts

#: Files of a folder, and nodes of all of them together: some 20 s and 1.2 GB.
MOST_FILES = 4096
MOST_NODES = 10_000_000
#: Tasks of the simulated ranks, one a stage: some 40 s.
MOST_TASKS = 1_000_000

#: Which ranks have a file: the first of each stage, or all.
RankChoice = Literal["distinct", "all"]

#: Files are called as ASTRA-sim expects: the prefix, then the rank.
PREFIX = "trace"
GROUPS_FILE = "comm_groups.json"
INDEX_FILE = "index.json"


@frozen
class RankFile:
    """The trace of one rank."""

    rank: int
    stage: int
    position: int

    @property
    def name(self) -> str:
        """Of the file."""
        return f"{PREFIX}.{self.rank}.et"


@dataclass(frozen=True)
class ChakraTraces:
    """Traces ready to be written."""

    ranks: PlanRanks
    #: by stage
    nodes: Sequence[Sequence[StageNode]]
    files: tuple[RankFile, ...]

    @property
    def num_nodes(self) -> int:
        """Of all files."""
        return sum(len(self.nodes[file.stage]) for file in self.files)

    @cached_property
    def bytes_per_group(self) -> dict[int, int]:
        """The sum of `comm_size` over the collectives of each process group that the files name, each once."""
        by_stage = [_bytes_by_partners(nodes) for nodes in self.nodes]
        sums: dict[int, int] = {}
        for file in self.files:
            own: dict[int, int] = {}
            for partners, sent in by_stage[file.stage].items():
                group = self.ranks.group_id(self._group(file, partners))
                own[group] = own.get(group, 0) + sent
            sums |= own
        return sums

    def groups(self) -> dict[str, list[int]]:
        """Process groups as ASTRA-sim's communicator group file has them: number → ranks."""
        numbers = self.bytes_per_group
        return {str(number): list(ranks) for ranks, number in self.ranks.groups.items() if number in numbers}

    def messages(self, file: RankFile) -> Iterator[bytes]:
        """The bytes of a file, message by message."""
        attributes: dict[Partners | None, bytes] = {None: b""}
        yield framed(metadata(f"dovetail {__version__}"))
        for node in self.nodes[file.stage]:
            if node.partners is not None and node.partners not in attributes:
                attributes[node.partners] = self._attributes(file, node.partners)
            yield framed(node.message + attributes[node.partners])

    def index(self) -> dict[str, Any]:
        """What the folder has: its files, the ranks that do the same work, and the bytes of its groups."""
        positions = range(self.ranks.per_stage)
        files = [
            {
                "file": file.name,
                "rank": file.rank,
                "stage": file.stage,
                "nodes": len(self.nodes[file.stage]),
                "same_work": [self.ranks.rank(file.stage, position) for position in positions],
            }
            for file in self.files
            if file.position == 0
        ]
        groups = {str(group): sent for group, sent in self.bytes_per_group.items()}
        return {
            "schema": f"Chakra {VERSION}",
            "producer": f"dovetail {__version__}",
            "world_size": self.ranks.plan.chips,
            "written": len(self.files),
            "stages": files,
            "bytes_per_group": groups,
        }

    def write(self, folder: Path) -> None:
        """Writes everything into a folder, which is made where there is none."""
        try:
            folder.mkdir(exist_ok=True)
            for file in self.files:
                with (folder / file.name).open("wb") as out:
                    out.writelines(self.messages(file))
            for name, content in ((GROUPS_FILE, self.groups()), (INDEX_FILE, self.index())):
                (folder / name).write_text(_json_lines(content), encoding="utf-8")
        except OSError as error:
            raise InputError(str(folder), f"cannot be written ({error.strerror})", "name a folder elsewhere") from None

    def _group(self, file: RankFile, partners: Partners) -> tuple[int, ...]:
        partner, among = partners
        if partner is Partner.STAGES:
            return self.ranks.across([int(stage) for stage in among], file.position)
        return self.ranks.along(file.stage, file.position, [str(axis) for axis in among])

    def _attributes(self, file: RankFile, partners: Partners) -> bytes:
        """What is a rank's own in a message."""
        partner, among = partners
        if partner in (Partner.TO_STAGE, Partner.FROM_STAGE):
            peer = self.ranks.rank(int(among[0]), file.position)
            return _between(*((file.rank, peer) if partner is Partner.TO_STAGE else (peer, file.rank)))
        group = self._group(file, partners)
        name = string("pg_name", str(self.ranks.group_id(group)))
        at = group.index(file.rank)
        if partner is Partner.NEXT:
            return name + _between(file.rank, group[(at + 1) % len(group)])
        if partner is Partner.PREVIOUS:
            return name + _between(group[at - 1], file.rank)
        return name


def chakra_traces(
    plan: Plan, job: Job, cluster: Cluster, framework: Framework | str = "megatron", ranks: RankChoice = "distinct"
) -> ChakraTraces:
    """The traces of a simulated step: of one rank a stage, whose other ranks do the same work, or of all ranks."""
    if plan.wafer is not None and (plan.wafer.loans or plan.wafer.store):
        what = "lends memory between stages or keeps some in a store, which traces have no nodes for"
        raise InputError("plan: wafer", what, "leave out loans and store")
    if plan.offload:
        raise InputError("plan: offload", "has something on the host, which traces have no nodes for", "leave it out")
    positions = range(1 if ranks == "distinct" else plan.chips // plan.pipeline_parallel)
    if len(positions) * plan.pipeline_parallel > MOST_FILES:
        raise _too_many(f"{len(positions) * plan.pipeline_parallel:,} files", f"{MOST_FILES:,}", ranks)
    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    facts = plan_facts(plan, framework, job)
    profiled = profiled_job(plan, job, cluster, facts, calibration(cluster.chip, job.precision).efficiencies)
    step = step_from(plan, profiled)
    tasks = step_writer(plan, job, profiled, step)(step.pipeline)
    if len(tasks.graph) > MOST_TASKS:
        raise _too_many(f"{len(tasks.graph):,} tasks", f"{MOST_TASKS:,}", "distinct")
    nodes = stage_nodes(tasks, run(tasks.graph), _works(plan, job, profiled, step))
    by_rank = PlanRanks(plan, arrange(plan, job.graph(), cluster).axes.sizes)
    files = [
        RankFile(by_rank.rank(stage, position), stage, position)
        for stage in range(plan.pipeline_parallel)
        for position in positions
    ]
    traces = ChakraTraces(by_rank, nodes, tuple(sorted(files, key=lambda file: file.rank)))
    if traces.num_nodes > MOST_NODES:
        raise _too_many(f"{traces.num_nodes:,} nodes", f"{MOST_NODES:,}", ranks)
    return traces


def _works(plan: Plan, job: Job, profiled: ProfiledJob, step: Step) -> StepWorks:
    works = task_works(plan, job, profiled, step)
    stream = float(largest(profile.stream_bytes for profile in step.profiles.layers.values()))
    return StepWorks(
        [_merged(works, layer_counts(stage)) for stage in step.stages],
        tied_bytes(step, profiled.gradient_bytes),
        round(stream / plan.stream_replicas),
    )


def _merged(works: Mapping[str, dict[TaskKey, TaskWork]], layers: Mapping[str, int]) -> dict[TaskKey, TaskWork]:
    return {key: work for name in layers for key, work in works[name].items()}


def _bytes_by_partners(nodes: Sequence[StageNode]) -> dict[Partners, int]:
    """What a rank of a stage counts for its groups."""
    sums: dict[Partners, int] = {}
    for node in nodes:
        if node.partners is not None and node.partners[0] in (Partner.GROUP, Partner.NEXT, Partner.STAGES):
            sums[node.partners] = sums.get(node.partners, 0) + node.bytes
    return sums


def _between(source: int, target: int) -> bytes:
    return int32("comm_src", source) + int32("comm_dst", target)


def _json_lines(content: Mapping[str, Any]) -> str:
    """One line an entry: groups and files may be many."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    return f"{{\n{lines}\n}}\n"


def _too_many(what: str, most: str, ranks: RankChoice) -> InputError:
    fix = "write one rank a stage: --ranks distinct" if ranks == "all" else "take fewer micro-batches or stages"
    return InputError("the traces of this step", f"would have {what}, more than {most}", fix)
