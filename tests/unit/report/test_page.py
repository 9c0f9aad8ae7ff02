"""The HTML report: complete, self-contained, safe to open, made of figures that agree with the answers."""

import json
import re
import shlex
from html.parser import HTMLParser
from typing import Any

import pytest
from plotly.graph_objects import Figure

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.report.page.document import Chart, Page, Section, Table, section_html, to_html
from dovetail.report.page.floor_plan import die_sketch
from dovetail.report.page.studies import study_page
from dovetail.report.page.subjects import page_of, page_of_answer

PLAN = """job: {model: qwen3-0.6b, seq_len: 4096, global_batch: 32}
cluster: {chip: h100-sxm, chips: 8}
plan: {tensor_parallel: 2, pipeline_parallel: 2, zero_stage: 1, recompute: selective}
"""
STUDY = {
    "name": "tiny",
    "jobs": [{"model": "gpt3-1.3b", "seq_len": 2048, "global_batch": 64}],
    "hardware": {"base": "tpu-v4", "vary": {"tensor_cores": [4, 8], "hbm_stacks": [2, 4]}},
    "cluster": {"chips": 16, "framework": "ideal"},
    "plans": {"tensor_parallel": [1], "context_parallel": [1], "pipeline_parallel": [1], "micro_batch": [1],
              "zero_stage": [0], "recompute": ["none"], "sequence_parallel": [False]},
    "objectives": ["step_time", "area"],
}  # fmt: skip


@pytest.fixture
def answer(tmp_path, command):
    (tmp_path / "plan.yaml").write_text(PLAN)
    code, out, _ = command("estimate", str(tmp_path / "plan.yaml"), "--json")
    assert code == 0
    return json.loads(out)


@pytest.fixture
def front(command):
    """Two numbers of chips that 8 sequences divide by, and one on which nothing fits."""
    asked = ("--model", "llama-3.1-8b", "--chip", "h100-sxm", "--chips", "1,4,8", "--seq-len", "8192")
    narrow = ("--fix", "tensor_parallel=4,8", "--fix", "context_parallel=1", "--fix", "recompute=full")
    run = ("--global-batch", "8", "--tokens", "1T", "--objective", "cost")
    code, out, said = command("plan", *asked, *run, *narrow, "--json")
    assert code == 0, said
    return json.loads(out)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.yaml").write_text(to_yaml(STUDY))
    dt.explore(folder / "study.yaml", folder / "run")
    return folder / "run"


class Reader(HTMLParser):
    """Open elements, addresses and the JSON of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.data, self.keys, self.told = [], [], {}, [], ""
        self._of = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.addresses += [given[name] for name in ("src", "href", "action") if given.get(name)]
        self.keys += [given["id"]] if "id" in given else []
        self._of = given.get("data-of")
        if tag not in ("meta", "link", "rect", "path", "line", "circle", "polyline", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        self._of = None
        if tag not in ("rect", "path", "line", "circle", "polyline", "polygon"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self._of:
            self.data[self._of] = json.loads(data)
        elif self.open and self.open[-1] not in ("script", "style"):
            self.told += data


def section(page: Page, key: str) -> Any:
    return next(each for each in page.sections if each.key == key)


def charts(page: Page) -> list[Chart]:
    return [each for section in page.sections for each in section.pictures if isinstance(each, Chart)]


def test_a_page_is_one_file_that_asks_nobody(answer):
    text = to_html(page_of_answer(answer, "answer.json", "dovetail report answer.json --out page.html"))
    read = Reader(text)
    assert read.open == []
    assert all(address.startswith("#") or address == "data:," for address in read.addresses)
    assert "default-src 'none'" in text
    assert len(text.encode()) < 6e6
    assert len(read.keys) == len(set(read.keys))


def test_figures_of_a_page_are_those_of_the_answer(answer):
    page = page_of_answer(answer, "answer.json", "")
    told = Reader(to_html(page)).told
    assert answer["words"] in page.sentence
    (time, memory, over_time) = charts(page)
    assert sum(time.data[0]["x"][:-1]) == pytest.approx(answer["step_time_s"])
    stacked = sum(trace["y"][0] for trace in memory.data)
    assert stacked * 2**30 == pytest.approx(sum(answer["memory_bytes"]["by_stage"][0].values()))
    assert max(over_time.data[0]["y"]) * 2**30 == pytest.approx(answer["memory_bytes"]["peak"], rel=0.05)
    assert all(name in told for name in ("Where the time goes", "What fills the memory", "The pipeline"))


def test_numbers_of_chips_are_compared_on_a_page(front):
    page = page_of_answer(front, "front.json", "")
    found = [point for point in front["front"] if point["plan"]]
    (best,) = (point for point in found if point["chips"] == front["best_chips"])
    assert len(found) == 2
    assert best["words"] in page.sentence
    time, cost = charts(page)
    assert time.data[1]["x"] == [point["chips"] for point in found]
    assert time.data[1]["y"] == [point["train_s"] / 86400 for point in found]
    assert cost.data[1]["y"] == [point["cost_usd"] for point in found]
    assert cost.data[0]["y"] == [point["cost_usd"] for point in found if point["on_cost_front"]]
    plans = section(page, "plans")
    assert [row[0] for row in plans.table.rows] == [str(point["chips"]) for point in found]
    assert [note.partition(":")[0] for note in plans.notes] == ["1 chip"]


def test_the_command_of_a_front_asks_the_same_again(front, command):
    (asked,) = page_of_answer(front, "front.json", "").command.splitlines()
    code, out, said = command(*shlex.split(asked.removesuffix(" > answer.json"))[1:])
    assert code == 0, said
    assert json.loads(out) | {"timing": None} == front | {"timing": None}


def test_the_command_of_an_answer_narrows_as_it_did(command):
    asked = ("--model", "llama-3.1-8b", "--chip", "h100-sxm", "--chips", "8", "--seq-len", "8192")
    asked += ("--global-batch", "8")
    narrow = ("--fix", "sequence_parallel=true", "--fix", "recompute=none,core_attn+mlp", "--fix", "partition=even")
    code, out, said = command("plan", *asked, *narrow, "--memory-limit", "60 GiB", "--json")
    assert code == 0, said
    answer = json.loads(out)
    (again,) = page_of_answer(answer, "answer.json", "").command.splitlines()
    code, out, said = command(*shlex.split(again.removesuffix(" --explain --json > answer.json"))[1:], "--json")
    assert code == 0, said
    assert json.loads(out) | {"timing": None} == answer | {"timing": None}


def test_plotly_accepts_every_chart(answer, front, run_dir):
    pages = [page_of_answer(answer, "answer.json", ""), page_of_answer(front, "", ""), page_of(run_dir, "")]
    for chart in (chart for page in pages for chart in charts(page)):
        Figure({"data": list(chart.data), "layout": chart.layout})


def test_the_timeline_has_each_piece_of_work_once(answer):
    page = page_of_answer(answer, "answer.json", "")
    rows = section(page, "pipeline").pictures[0].data["rows"]
    # 2 stages, forward and backward of each micro-batch
    assert [len(row["begin"]) for row in rows] == [2 * answer["plan"]["num_microbatches"]] * 2
    assert all(
        begin + length <= 1e6 + 1 for row in rows for begin, length in zip(row["begin"], row["length"], strict=True)
    )


def test_text_of_users_stays_text():
    evil = "</script><script>alert(1)</script>"
    chart = Chart([{"type": "bar", "x": [1], "name": evil}], {}, evil)
    told = Section("a", evil, evil, (chart,), Table((evil,), ((evil,),)), notes=(evil,))
    page = Page(evil, evil, ((evil, evil, evil),), (told,), evil, {evil: evil})
    text = to_html(page)
    assert "<script>alert" not in text
    assert Reader(section_html(told)).data["a-0"]["data"][0]["name"] == evil


def test_a_plan_file_has_a_page_without_a_search(tmp_path, command):
    (tmp_path / "plan.yaml").write_text(PLAN)
    arguments = (str(tmp_path / "plan.yaml"), "--out", str(tmp_path / "page.html"), "--no-search")
    code, said, _ = command("report", *arguments)
    assert (code, "wrote" in said) == (0, True)
    assert "already exists" in command("report", *arguments)[2]
    written = json.loads(command("report", *arguments, "--force", "--json")[1])
    assert written["bytes"] == len((tmp_path / "page.html").read_bytes()) < 6e6
    assert "Neighbouring plans" not in Reader((tmp_path / "page.html").read_text()).told


@pytest.mark.slow
def test_a_plan_file_is_held_against_the_best(tmp_path, command):
    (tmp_path / "plan.yaml").write_text(PLAN)
    out = tmp_path / "page.html"
    code, said, _ = command("report", str(tmp_path / "plan.yaml"), "--out", str(out), "--time-limit", "2")
    assert (code, "wrote" in said) == (0, True)
    told = Reader(out.read_text()).told
    assert "Neighbouring plans" in told
    assert "from the fastest" in told


def test_a_study_shows_its_front_and_floor_plans(run_dir):
    page = page_of(run_dir, "")
    widget = section(page, "designs").pictures[0]
    result = json.loads((run_dir / "result.json").read_text())["result"]
    assert widget.data["group"].count(0) == len(result["front"])
    best = min(point["objectives"]["step_time"] for point in result["front"])
    assert widget.data["columns"]["step_time"][0] == pytest.approx(best, rel=1e-4)
    assert all("<svg" in each["picture"] for each in widget.data["detail"].values())
    assert sorted(set(widget.data["columns"]["tensor_cores"])) == [4, 8]


def test_the_page_of_a_study_with_scenarios_says_why(command, tmp_path):
    study = {**STUDY, "objectives": ["step_time"], "limits": {"area_mm2": 900}, "candidates": ["tpu-v4"]}
    (tmp_path / "study.yaml").write_text(to_yaml({**study, "scenarios": [{"name": "low", "coefficients": "low"}]}))
    run = tmp_path / "run"
    code, _, said = command("explore", str(tmp_path / "study.yaml"), "--out", str(run), "--explain")
    assert code == 0, said
    page = page_of(run, "")
    reasons = json.loads((run / "reasons.json").read_text())
    assert "least worst regret" in page.sentence
    assert [row[0] for row in section(page, "regret").table.rows] == ["as given", "low"]
    (point,) = reasons["points"]
    assert len(section(page, "gains").table.rows) == len(point["gains"]["changes"])
    assert section(page, "limits").table.rows[0][0] == "area_mm2"
    for key in ("bottleneck-0", "gains", "limits", "parts"):
        assert section(page, key).pictures
    # reasons of another result are not shown
    (run / "reasons.json").write_text(json.dumps({**reasons, "result_sha256": "0" * 64}))
    assert "gains" not in [each.key for each in page_of(run, "").sections]


def test_the_answer_of_a_study_has_the_page_of_its_run(run_dir):
    answer = json.loads((run_dir / "result.json").read_text())["result"] | {"run_dir": str(run_dir)}
    assert page_of_answer(answer, "answer.json", "") == page_of(run_dir, "")


def test_a_study_that_still_runs_shows_the_best_so_far(run_dir, tmp_path):
    unfinished = tmp_path / "run"
    for path in (p for p in run_dir.rglob("*") if p.is_file() and p.name != "result.json"):
        copy = unfinished / path.relative_to(run_dir)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    page = study_page(str(unfinished), "")
    assert "still running" in page.title
    assert section(page, "front").table == section(page_of(run_dir, ""), "front").table


def test_parts_of_a_floor_plan_are_to_scale():
    sketch = die_sketch({"tensor": 300.0, "vector": 100.0, "shared memory": 200.0, "other": 0.0}, 4)
    areas = [
        float(w) * float(h) for w, h in re.findall(r'width="([\d.]+)" height="([\d.]+)" fill="#(?!767676)', sketch)
    ]
    assert sum(areas) == pytest.approx(200.0**2, rel=0.01)
    assert sorted(area / 200**2 for area in areas) == pytest.approx([1 / 6, 1 / 3, 1 / 2], abs=0.01)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[]", "it should contain a mapping"),
        ('{"a": 1}', "is no answer with a plan, a study or a scoreboard"),
        ('{"breakdown": {}, "memory_bytes": {}, "provenance": {}, "plan": null}', "has no plan"),
        (
            '{"objective": "time", "best_chips": 8, "job": {}, "cluster": {}, "front": [], "provenance": {}}',
            "has no plan",
        ),
        ('{"breakdown": {}, "memory_bytes": {}, "provenance": {}, "plan": {}}', "is missing"),
    ],
)
def test_a_wrong_answer_is_refused_in_a_sentence(tmp_path, command, content, sentence):
    (tmp_path / "a.json").write_text(content)
    code, _, said = command("report", str(tmp_path / "a.json"), "--out", str(tmp_path / "page.html"))
    assert code == 2
    assert sentence in said
    assert said.count("\n") == 1


def test_wrong_places_are_refused_before_the_work(tmp_path, command, run_dir):
    for arguments, sentence in (
        ((str(run_dir), "--out", str(tmp_path / "page.pdf")), "does not end in .html"),
        ((str(run_dir), "--out", str(tmp_path / "no" / "page.html")), "a folder that does not exist"),
        ((str(tmp_path), "--out", str(tmp_path / "page.html")), "has no run"),
        ((str(tmp_path / "no.json"), "--out", str(tmp_path / "page.html")), "cannot be read"),
    ):
        code, _, said = command("report", *arguments)
        assert code == 2, said
        assert sentence in said
