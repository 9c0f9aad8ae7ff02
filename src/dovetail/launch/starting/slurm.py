"""A launch as a Slurm batch file."""

from __future__ import annotations

from dovetail.launch.starting.nodes import (
    NodeLaunch,
    checks,
    exports,
    heading,
    node_command,
    port,
    written_files,
)


def slurm(launch: NodeLaunch) -> tuple[str, str]:
    """The batch file; `srun` runs a shell function on every node."""
    usage = [
        "Submit this file with sbatch, in the folder of the program, which all nodes share.",
        "The job gets the variables below, and its Python, from the shell that submits it.",
    ]
    asked = {
        "SBATCH_PARTITION": "the partition, read by sbatch; not needed where the cluster has a default",
        "SBATCH_ACCOUNT": "the account, likewise",
        "SBATCH_TIMELIMIT": "the longest the job may take, likewise",
    }
    filled_in = [f"export {' '.join(launch.start.fill_in)}"] if launch.start.fill_in else []
    lines = [
        "#!/bin/bash",
        *heading(launch, usage, asked),
        *(f"#SBATCH {option}" for option in _options(launch)),
        "",
        "set -euo pipefail",
        "",
        *checks(launch),
        *filled_in,
        'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"',
        "export MASTER_ADDR",
        port(),
        *exports(launch),
        *written_files(launch),
        "",
        "run_node() {",
        '    NODE_RANK="$SLURM_NODEID"',
        *(f"    {line}" for line in node_command(launch)),
        "}",
        "export -f run_node",
        "srun --kill-on-bad-exit=1 --cpu-bind=none bash -c run_node",
    ]
    return f"{launch.target}.sbatch", "\n".join(lines) + "\n"


def _options(launch: NodeLaunch) -> list[str]:
    gpus = [f"--gpus-per-node={launch.chips_per_node}"] if launch.cluster.chip.kind == "gpu" else []
    return [
        f"--job-name={launch.name}",
        f"--nodes={launch.nodes}",
        "--ntasks-per-node=1",
        *gpus,
        "--exclusive",
        "--output=%x-%j.out",
    ]
