"""The accuracy page: what is written between markers, what is kept, and what is refused."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dovetail.accuracy import MeasuredRun, MeasuredRuns, Prediction, Refusal, read_runs, score
from dovetail.report import accuracy_page
from dovetail.report.accuracy_page import BEGIN, END, write_accuracy_page
from dovetail.report.accuracy_tables import NONE, percent, plain, table

ROOT = Path(__file__).parents[3]
DATE = datetime.date(2031, 2, 3)
PAGES = ("docs/results/accuracy.md", "docs/results/accuracy-tables.md")
DOCUMENTS = (*PAGES, "README.md")
ROW = {
    "id": "plain", "source_family": "ours", "tier": "A", "framework": "Megatron-LM", "chip": "a100-80gb",
    "chips_per_node": "8", "num_chips": "16", "model": "GPT-small", "layers": "8", "hidden": "1024",
    "ffn_hidden": "4096", "gated_mlp": "0", "heads": "16", "kv_heads": "16", "head_dim": "64", "vocab": "50257",
    "seq_len": "1024", "precision": "fp16", "attention": "unfused", "tp": "2", "pp": "2", "dp": "4",
    "micro_batch": "2", "global_batch": "64", "recompute": "full", "step_time_s": "1.5",
    "peak_memory_bytes": "1e10", "memory_kind": "reserved",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> MeasuredRun:
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerow(ROW)
    return read_runs(path).runs[0]


@pytest.fixture
def docs(tmp_path) -> Path:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    for name in PAGES:
        (tmp_path / name).write_bytes(f"# Page\r\n\n{BEGIN}\nold\n{END}\nprose \n".encode())
    (tmp_path / "README.md").write_text(f"before\n  {BEGIN}\n{END}\nafter")
    return tmp_path / "docs"


def made(run: MeasuredRun, ratio: float, id_: str, family: str = "ours") -> Prediction:
    measured = replace(run, id=id_, family=family)
    return Prediction(measured, ratio * run.step_time_s, 1.1e10, fits=True, missing_share=0.0, provenance={})


def write(
    docs: Path, *answers: Prediction | Refusal, left_out: Mapping[str, Prediction] | None = None
) -> tuple[Path, ...]:
    runs = tuple(a.run for a in answers if isinstance(a, Prediction))
    measured = MeasuredRuns(len(answers) + 2, len(answers), runs, ())
    return write_accuracy_page(docs, measured, score(measured, answers, left_out), answers, left_out, DATE)


def cells(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_figures_go_between_the_markers_and_nothing_else_changes(docs, run):
    written = write(docs, made(run, 1.2, "a"), made(run, 0.9, "b", "theirs"))
    assert [path.name for path in written][-3:] == ["accuracy.md", "accuracy-tables.md", "README.md"]
    for name in PAGES:
        page = (docs.parent / name).read_bytes().decode()
        assert page.startswith(f"# Page\r\n\n{BEGIN}\n\nAs of 2031-02-03, step time is **15.0 %** off")
        assert page.endswith(f"\n\n{END}\nprose \n")
        assert "\nold\n" not in page
    readme = (docs.parent / "README.md").read_text()
    assert readme.startswith(f"before\n  {BEGIN}\n\n- **Step time**: 15.0 % off on 2 measured runs of 2 families")
    assert readme.endswith(f"(docs/results/accuracy.md)\n\n{END}\nafter")
    assert "as of 2031-02-03;" in readme


def test_writing_again_gives_the_same_bytes(docs, run):
    answers = (made(run, 1.2, "a"), made(run, 0.9, "b", "theirs"), Refusal("c", "ours", "odd."))
    first = {path: path.read_bytes() for path in write(docs, *answers)}
    assert {path: path.read_bytes() for path in write(docs, *answers)} == first


def test_tables_have_the_scoreboards_figures(docs, run):
    answers = [made(run, 1.2, "a"), made(run, 0.9, "b"), made(run, 1.5, "c", "theirs")]
    left_out = {"a": made(run, 1.4, "a"), "b": made(run, 1.4, "b"), "c": made(run, 2.0, "c", "theirs")}
    write(docs, *answers, Refusal("d", "ours", "odd."), left_out=left_out)
    page = (docs / "results" / "accuracy.md").read_text()
    assert cells(page, "ours |") == ["ours", "2", "15.0 %", "15.0 %", "19.0 %", "+5.0 %", "40.0 %", NONE, NONE]
    assert cells(page, "**mean")[2] == "32.5 %"
    assert cells(page, "**mean")[6] == "70.0 %"
    assert cells(page, "all runs")[6] == "60.0 %"
    assert cells(page, "reserved") == ["reserved", "3", "10.0 %", "10.0 %", "10.0 %", "+10.0 %"]
    assert cells(page, "theirs | a100-80gb | GPT-small") != []
    tables = (docs / "results" / "accuracy-tables.md").read_text()
    assert cells(tables, "odd.") == ["odd.", "1", "d"]
    assert cells(tables, "configuration not known well enough")[1] == "2"
    assert "**70.0 %** off where a run's family was left out of the fit." in page
    readme = (docs.parent / "README.md").read_text()
    assert "- **Step time**: 32.5 % off on 3 measured runs of 2 families of sources\n" in readme
    assert "- **A family left out of the fit**: 70.0 % off\n" in readme
    assert "- **Memory**: 10.0 % off what is reserved (3 runs)\n" in readme


def test_plans_measured_side_by_side_are_ranked(docs, run):
    tasks = [replace(run.task, plan=replace(run.task.plan, micro_batch=size)) for size in (1, 2, 4)]
    runs = [replace(run, id=str(n), task=task, step_time_s=1.0 + n) for n, task in enumerate(tasks)]
    answers = [replace(made(run, 1.0, ""), run=each, step_time_s=4.0 - n) for n, each in enumerate(runs)]
    write(docs, *answers, left_out={each.run.id: replace(each, step_time_s=each.run.step_time_s) for each in answers})
    page = (docs / "results" / "accuracy.md").read_text()
    assert cells(page, "mean regret")[1:] == ["200.0 %", "0.0 %"]
    assert cells(page, "Kendall tau, all pairs")[1:] == ["−1.00", "1.00"]
    readme = (docs.parent / "README.md").read_text()
    assert "- **The plan it ranks first**: 200.0 % slower than the best measured of its group (1 group)\n" in readme


def test_without_families_left_out_there_is_one_bar_each(docs, run):
    write(docs, made(run, 1.2, "a"))
    page = (docs / "results" / "accuracy.md").read_text()
    families = (docs / "assets" / "accuracy-families.svg").read_text()
    assert "left out of the fit" not in page
    assert cells(page, "ours |")[6] == NONE
    assert "fitted without the family" not in families
    write(docs, made(run, 1.2, "a"), left_out={"a": made(run, 1.3, "a")})
    assert "fitted without the family" in (docs / "assets" / "accuracy-families.svg").read_text()


def test_families_that_were_not_left_out_are_told(docs, run):
    write(docs, made(run, 1.2, "a"), made(run, 1.2, "b", "theirs"), left_out={"a": made(run, 1.3, "a")})
    page = (docs / "results" / "accuracy.md").read_text()
    assert "(mean over the 1 that were left out)" in page
    assert cells(page, "theirs |")[6] == NONE


def test_every_plot_is_well_formed_and_shown_by_a_page(docs, run):
    written = write(docs, made(run, 1.2, "a"), made(run, 0.9, "b", "theirs"))
    plots = [path for path in written if path.suffix == ".svg"]
    for path in plots:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314
    pages = "".join((docs.parent / name).read_text() for name in PAGES)
    shown = re.findall(r"!\[[^\]]+\]\((\.\./assets/[^)]+)\)", pages)
    assert sorted(shown) == sorted(f"../assets/{path.name}" for path in plots)


def test_names_from_a_file_stay_text(docs, run):
    name = f"<b>|*{END}*|</b>\n| [x](y) `z`"
    write(docs, made(run, 1.2, "a", name), Refusal("<i>", name, f"{name} {END}\n{BEGIN}"))
    for path in (docs.parent / each for each in DOCUMENTS):
        lines = path.read_text().splitlines()
        assert sum(line.strip() == END for line in lines) == 1
        assert "<b>" not in path.read_text()
        assert "<i>" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"only {BEGIN}\n{END}", "there is no line '<!-- scoreboard:begin -->'"),
        (f"{BEGIN}\n", "there is no line '<!-- scoreboard:end -->'"),
        (f"{BEGIN}\n{BEGIN}\n{END}\n", "there are 2 lines '<!-- scoreboard:begin -->'"),
        (f"{END}\n{BEGIN}\n", "'<!-- scoreboard:end -->' comes before"),
    ],
)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_markers_that_are_not_a_pair_are_refused_and_nothing_is_written(docs, run, refusal, name, text, says):
    path = docs.parent / name
    path.write_text(text)
    before = {p: p.read_bytes() for p in (docs.parent / each for each in DOCUMENTS)}
    sentence = refusal(write, docs, made(run, 1.2, "a"))
    assert sentence.startswith(str(path))
    assert says in sentence
    assert {p: p.read_bytes() for p in before} == before
    assert not (docs / "assets").exists()


def test_a_missing_document_is_refused(docs, run, refusal):
    (docs.parent / "README.md").unlink()
    assert "README.md: cannot be read as text" in refusal(write, docs, made(run, 1.2, "a"))


def test_small_generations_share_a_panel(docs, run, monkeypatch):
    monkeypatch.setattr(accuracy_page, "LEAST_RUNS", 2)
    named = {"a100-80gb": "ampere", "x": "xenon"}
    monkeypatch.setattr(accuracy_page, "generation_followed", lambda chip: named.get(chip.name))
    task = run.task

    def on(chip: str, id_: str) -> Prediction:
        cluster = replace(task.cluster, chip=replace(task.cluster.chip, name=chip))
        return replace(made(run, 1.2, id_), run=replace(run, id=id_, task=replace(task, cluster=cluster)))

    write(docs, on("a100-80gb", "a"), on("a100-80gb", "b"), on("x", "c"), *(on(f"chip {n}", str(n)) for n in range(9)))
    text = (docs / "assets" / "accuracy-predicted-measured.svg").read_text()
    assert "ampere: 2 runs, 20.0 % off" in text
    assert "other chips: 10 runs, 20.0 % off" in text
    assert "xenon" not in text
    assert "4 more" in text


def test_figures_as_text():
    assert percent(-0.0004, signed=True) == "0.0 %"
    assert percent(-0.123, signed=True) == "−12.3 %"
    assert percent(0.05, signed=True, decimals=0) == "+5 %"
    assert plain("a|b_c\n<d> & e") == "a\\|b\\_c &lt;d&gt; &amp; e"
    assert table(("a", "b", "c"), [("x", "y", "1")], texts=2) == "| a | b | c |\n| --- | --- | ---: |\n| x | y | 1 |"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_repositorys_documents_have_the_markers(name):
    text = accuracy_page.replaced(ROOT / name, "figures")
    assert f"{BEGIN}\n\nfigures\n\n{END}" in text
