"""Writes the tables of support.md from the catalogue, the calibration, the shipped runs and the launch formats.

`python docs/reference/support.py` asks for each model of the catalogue whether a framework's plans are searched for it,
whether its launch file is written, and whether the file reads back to the same model. The first model of each family is
also evaluated and simulated under every framework.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import dovetail as dt
from dovetail import frameworks, hardware, models
from dovetail.accuracy.published import published_runs
from dovetail.accuracy.rows import MeasuredRun
from dovetail.cost.calibration import PRECISION_ROWS, calibration, shipped
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.launch.targets import EXPORTERS, IMPORTERS, read_launch
from dovetail.models import Model
from dovetail.plans.launch_limits import LAUNCHES
from dovetail.plans.plan_file import Task, task_of
from dovetail.plans.runs import check_job

PAGE = Path(__file__).with_name("support.md")
#: Family → names of the catalogue that belong to it, smallest model first.
FAMILIES = {
    "Llama 1 to 3": r"llama-(?!4).*",
    "Mistral": r"mistral-.*",
    "Qwen2, Qwen2.5, Qwen3, dense": r"qwen(2|2\.5|3)-(\d+b|[\d.]+b)",
    "Phi-2": r"phi-2",
    "Phi-3": r"phi-3-.*",
    "Gemma 2, 3, 4": r"gemma-.*",
    "Nemotron-4": r"nemotron-4-.*",
    "GPT-2, GPT-3, MT-NLG, Megatron 1T": r"gpt2-.*|gpt3-.*|mt-nlg-.*|megatron-gpt2-.*|megatron-1t",
    "OPT": r"opt-.*",
    "GPT-J, GPT-NeoX": r"gpt-j-.*|gpt-neox-.*",
    "BLOOM": r"bloom-.*",
    "Falcon": r"falcon-.*",
    "MPT": r"mpt-.*",
    "PaLM": r"palm-.*",
    "GLM-130B": r"glm-130b",
    "BERT": r"bert-.*|megatron-bert-.*",
    "Mixtral": r"mixtral-.*",
    "Qwen2 and Qwen3 with experts": r"qwen(2|3)-\d+b-a.*",
    "GPT-OSS": r"gpt-oss-.*",
    "GLM-4.5": r"glm-4.5.*",
    "MiniMax-M2, MiMo-V2": r"minimax-m2|mimo-.*",
    "Llama 4": r"llama-4-.*",
    "DeepSeek-V2, V3, Kimi K2": r"deepseek-v(2|2-lite|3)|kimi-k2|moe-10t",
    "DeepSeek-V3.2, GLM-5": r"deepseek-v3\.2|glm-5",
    "Qwen3-Next, Qwen3.5": r"qwen3-next-.*|qwen3\.5-.*",
    "Nemotron-H, Nemotron 3": r"nemotron-h-.*|nemotron-3-.*",
    "Mamba-2": r"mamba2-.*",
    "Kimi Linear, MiniMax-Text": r"kimi-linear-.*|minimax-text-.*",
}
#: Words in a measured run's model → its family; the first that is found counts.
MEASURED = (
    (r"deepseek|kimi", "DeepSeek-V2, V3, Kimi K2"),
    (r"qwen3", "Qwen2 and Qwen3 with experts"),
    (r"gemma", "Gemma 2, 3, 4"),
    (r"mixtral|laer|grok|minicpm 8x", "Mixtral"),
    (r"mistral", "Mistral"),
    (r"qwen", "Qwen2, Qwen2.5, Qwen3, dense"),
    (r"nemotron", "Nemotron-4"),
    (r"llama.4", "Llama 4"),
    # and models built like them
    (r"llama|internlm|maxtext|yi |glm|baichuan|aquila|minicpm", "Llama 1 to 3"),
    (r"mpt", "MPT"),
    (r"bloom", "BLOOM"),
    (r"gpt|mt-nlg", "GPT-2, GPT-3, MT-NLG, Megatron 1T"),
)
#: Frameworks whose plans are started by a launch file, and a plan that each of them runs.
PLANS = {
    "megatron": {"zero_stage": 1, "recompute": "full"},
    "torchtitan": {"zero_stage": 3, "recompute": "full"},
    "maxtext": {"zero_stage": 3, "recompute": "full"},
    "deepspeed": {"zero_stage": 3, "recompute": "full"},
    "fsdp": {"zero_stage": 3, "recompute": "full"},
}
#: Generations of the calibration, and chips without one, as the table calls them.
GENERATIONS = {
    "ampere": "A100, A800", "hopper": "H100, H200, H800", "blackwell": "B200, GB200",
    "blackwell-ultra": "B300, GB300", "tpu-v5": "TPU v5", "tpu-v6": "TPU v6e", "gaudi2": "Gaudi 2",
    "volta": "V100", "cdna4": "MI350X, MI355X", "trainium": "Trainium", "ascend": "Ascend 910B",
}  # fmt: skip
#: Targets whose launch files hold the model.
WITH_MODEL = ("megatron", "torchtitan", "maxtext")


def family_of(name: str) -> str:
    """The one family of a model of the catalogue."""
    (family,) = (family for family, pattern in FAMILIES.items() if re.fullmatch(pattern, name))
    return family


def task_for(name: str, framework: str, plan: dict[str, object]) -> Task:
    """A question of the framework: 64 GPUs, or as many TPUs for MaxText."""
    job = {"model": name, "seq_len": min(4096, models.load(name).max_seq_len), "global_batch": 128}
    chip = "tpu-v5p" if framework == "maxtext" else "h100-sxm"
    return task_of({"job": job, "cluster": {"chip": chip, "chips": 64, "framework": framework}, "plan": plan}, name)


def planned(name: str, framework: str) -> bool:
    """Whether the search takes the job at all; otherwise it is refused before it begins."""
    model = models.load(name)
    try:
        check_job(dt.Job(model, min(4096, model.max_seq_len), 128), frameworks.load(framework))
    except InputError:
        return False
    return True


def launched(name: str, framework: str) -> bool:
    """Whether a launch file is written and, where it holds the model, reads back to the same parameters."""
    target = frameworks.load(framework).launch
    assert target is not None
    try:
        task = task_for(name, framework, PLANS[framework])
        text = EXPORTERS[target].export(task).text
    except InputError:
        return False
    if target in WITH_MODEL:
        read = read_launch(text, name, target, 64).job["model"]
        model = models.load(read) if isinstance(read, str) else validate(Model, read, name)
        assert models.summarise(model).parameters == models.summarise(task.job.model).parameters, name
    return True


def works(name: str, framework: str) -> bool:
    """Whether a plan of the model is evaluated and simulated."""
    try:
        task = task_for(name, framework, PLANS.get(framework, {"zero_stage": 1}))
    except InputError:
        return False
    seconds = dt.evaluate(task.plan, task.job, task.cluster, task.framework).step_time_s
    return abs(dt.simulate(task.plan, task.job, task.cluster, task.framework).step_time_s / seconds - 1) < 0.5


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def chips_table(runs: Sequence[MeasuredRun]) -> str:
    """What the efficiencies of each chip rest on."""
    measured: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for run in runs:
        row = PRECISION_ROWS[run.task.job.precision]
        measured[run.task.cluster.chip.name, row][run.task.framework.name] += 1
    return table(("chip", "16 bits", "fp8", "fp4", "shipped runs"), _chip_rows(measured))


def _chip_rows(measured: dict[tuple[str, str], Counter[str]]) -> Iterator[tuple[str, ...]]:
    words = {"fitted": "**fitted**", "transfer": "transferred", "assumed": "assumed"}
    order = {"fitted": 0, "transfer": 1, "assumed": 2}
    names = sorted(
        hardware.chip_names(), key=lambda name: (order[calibration(hardware.chip(name), "bf16").basis], name)
    )
    for name in names:
        chip = hardware.chip(name)
        cells = []
        for precision in ("bf16", "fp8", "fp4"):
            has = precision in chip.dense_flops.published() or precision == "bf16"
            cells.append(words[calibration(chip, precision).basis] if has else "–")
        counts = sum((measured[name, row] for row in ("half", "fp8", "fp4")), Counter[str]())
        yield (
            f"`{name}`",
            *cells,
            ", ".join(f"{framework} {number}" for framework, number in counts.most_common()) or "–",
        )


def frameworks_table(runs: Sequence[MeasuredRun]) -> str:
    """What each framework of the catalogue can be asked, and what its overheads rest on."""
    counts = Counter(run.task.framework.name for run in runs)
    head = ("`--framework`", "plans of", "`export --to`", "`import`", "fitted overheads", "shipped runs")
    return table(head, (_framework_row(name, counts[name]) for name in frameworks.names()))


def _framework_row(name: str, runs: int) -> tuple[str, ...]:
    framework = frameworks.load(name)
    assert works("gpt3-1.3b", name) or name == "torchtitan"
    fields = ("host_s", "traffic", "exposed", "attention", "microbatch_s", "step_s")
    fitted = [f"`{field}`" for field in fields if getattr(framework, field).status == "fitted"]
    target = framework.launch
    written = "–" if target is None else f"`{target}`: {EXPORTERS[target].version_of(None)}"
    if target == "megatron":
        releases = EXPORTERS[target].releases
        written = (
            f"`megatron`: {EXPORTERS[target].version} {' or '.join(releases)}; `bridge`: {EXPORTERS['bridge'].version}"
        )
    read = "yes" if target in IMPORTERS else "–"
    return f"`{name}`", framework.version, written, read, ", ".join(fitted) or "none", str(runs or "–")


def shapes(runs: Sequence[MeasuredRun]) -> dict[str, str]:
    """Runs → the family whose shape their model has."""
    data = files("dovetail.accuracy") / "data" / "published_runs.csv"
    written = {row["id"]: row["model"] for row in csv.DictReader(data.read_text(encoding="utf-8").splitlines())}
    return {
        run.id: next(family for pattern, family in MEASURED if re.search(pattern, written[run.id].casefold()))
        for run in runs
    }


def runs_table(runs: Sequence[MeasuredRun]) -> str:
    """Measured runs by the shape of the model, framework and generation of chips."""
    family, counts = shapes(runs), Counter[tuple[str, str, str]]()
    for run in runs:
        chip = run.task.cluster.chip
        counts[family[run.id], run.task.framework.name, calibration(chip, "bf16").generation] += 1
    generations = [*shipped().generations, *shipped().defaults]
    generations = [each for each in generations if any(key[2] == each for key in counts)]
    pairs = sorted({key[:2] for key in counts}, key=lambda pair: (list(FAMILIES).index(pair[0]), pair[1]))
    rows = (
        (shape, f"`{name}`", *(str(counts[shape, name, each] or "–") for each in generations)) for shape, name in pairs
    )
    return table(("shape of the model", "framework", *(GENERATIONS[each] for each in generations)), rows)


def families_table() -> str:
    """What can be done for the models of each family."""
    members: dict[str, list[str]] = defaultdict(list)
    for name in models.names():
        members[family_of(name)].append(name)
    assert members.keys() == FAMILIES.keys()
    head = ("family", "models", *(LAUNCHES[name].title for name in WITH_MODEL))
    return table(head, (_family_row(family, members[family]) for family in FAMILIES))


def _family_row(family: str, names: Sequence[str]) -> tuple[str, ...]:
    smallest = min(names, key=lambda name: models.summarise(models.load(name)).parameters)
    assert works(smallest, "ideal"), smallest
    searched = {framework: [name for name in names if planned(name, framework)] for framework in PLANS}
    written = {framework: [name for name in searched[framework] if launched(name, framework)] for framework in PLANS}
    for framework in PLANS:
        if framework not in WITH_MODEL:
            assert len(written[framework]) == len(names), (family, framework)
        if smallest in searched[framework]:
            assert works(smallest, framework), (smallest, framework)
    cells = (_cell(len(names), len(searched[name]), len(written[name])) for name in WITH_MODEL)
    return family, str(len(names)), *cells


def _cell(models_: int, searched: int, written: int) -> str:
    def part(number: int) -> str:
        return "" if number == models_ else f" {number}"

    if not searched:
        return "–"
    return f"plan{part(searched)}, export{part(written)}" if written else f"plan{part(searched)}"


def main() -> None:
    """Writes the tables between their marks."""
    runs = published_runs().runs
    text = PAGE.read_text(encoding="utf-8")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parts = {
        "chips": chips_table(runs), "frameworks": frameworks_table(runs), "families": families_table(),
        "runs": runs_table(runs),
        "date": f"Made on {today} by `python docs/reference/support.py`, which runs what the tables claim.",
    }  # fmt: skip
    for name, part in parts.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        text = re.sub(f"{begin}.*?{end}", lambda _, p=part, b=begin, e=end: f"{b}\n\n{p}\n\n{e}", text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
