"""The documentation as a whole: generated parts are current, schemas hold, pages are short and easy to reach."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from dovetail.cli import app
from dovetail.cli.commands import PLACES
from dovetail.documents import read_document
from golden.answers.compare import arguments, questions

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCHEMAS = DOCS / "reference" / "schemas"
PAGES = sorted(DOCS.glob("**/*.md"))
PUBLISHED_RUNS = ROOT / "src" / "dovetail" / "accuracy" / "data" / "published_runs.csv"
GENERATOR = runpy.run_path(str(DOCS / "generate_reference.py"))
#: Pages a reader finishes in one sitting, and a README that shows the point before one scrolls far.
MOST_WORDS = 2_500
MOST_README_LINES = 150
#: From the start page to any page.
MOST_CLICKS = 2

Command = Callable[..., tuple[int, str, str]]
Arguments = Callable[[Path], list[str]]


def schema(name: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


# --- generated parts -----------------------------------------------------------------------------------------------


def test_the_generated_reference_is_up_to_date_whatever_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert GENERATOR["outdated"](GENERATOR["generated"]()) == [], "run `just reference`"


def test_each_command_has_one_section():
    sections = re.findall(r"^## dovetail (\S+)$", "\n".join(page.read_text() for page in PAGES), flags=re.MULTILINE)
    assert sorted(sections) == sorted(PLACES)


def test_a_new_command_gets_a_section_and_a_line_of_the_overview():
    def new() -> None:
        """Do something new."""

    app.command("something-new")(new)
    try:
        pages = {path.name: text for path, text in GENERATOR["generated"]().items()}
    finally:
        app.registered_commands.pop()
    assert "## dovetail something-new\n\nDo something new." in pages["commands-checks.md"]
    assert "commands-checks.md#dovetail-something-new" in pages["commands.md"]


def test_a_section_of_a_command_that_is_gone_is_refused():
    page = {"page.md": "<!-- generated:begin command gone -->\n<!-- generated:end -->"}
    with pytest.raises(SystemExit, match="'command gone' is no command"):
        GENERATOR["_places"](page, ["command plan"])


# --- answers -------------------------------------------------------------------------------------------------------

PLANS = ("tensor_parallel=1", "pipeline_parallel=1", "zero_stage=1", "recompute=none")
STUDY = {
    "name": "small",
    "jobs": [{"model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 16}],
    "hardware": {"base": "h100-sxm", "vary": {"tensor_cores": [264, 528]}},
    "limits": {"area_mm2": 1000},
    "cluster": {"chips": 8},
    "plans": {
        "tensor_parallel": [1],
        "pipeline_parallel": [1],
        "context_parallel": [1],
        "micro_batch": [1],
        "zero_stage": [0],
        "recompute": ["none"],
    },
}


def asked(kind: str, name: str) -> Arguments:
    """A question of the golden answers."""
    (question,) = (question for question in questions(kind) if question["id"] == name)
    return lambda folder: arguments(kind, question, folder)


def planned(model: str, *flags: str) -> Arguments:
    question = ["plan", "--model", model, "--chip", "h100-sxm", "--global-batch", "16", "--seq-len", "1024", *flags]
    return lambda _: [*question, *(word for plan in PLANS for word in ("--fix", plan))]


def explored(*objectives: str, explain: bool = False) -> Arguments:
    def write(folder: Path) -> list[str]:
        (folder / "study.yaml").write_text(json.dumps({**STUDY, "objectives": objectives}))
        return [
            "explore",
            str(folder / "study.yaml"),
            "--out",
            str(folder / "run"),
            *(["--explain"] if explain else ()),
        ]

    return write


def validated(folder: Path) -> list[str]:
    lines = PUBLISHED_RUNS.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "runs.csv").write_text("".join(lines[:4]))
    return ["validate", "--runs", str(folder / "runs.csv")]


#: A few cheap questions for each schema: exit code and arguments.
def too_large(folder: Path) -> list[str]:
    """An estimate of a plan that does not fit."""
    file = folder / "plan.yaml"
    job = "job: {model: llama-3.2-1b, seq_len: 4096, global_batch: 32}"
    file.write_text(f"{job}\ncluster: {{chip: h100-sxm, chips: 2}}\nplan: {{micro_batch: 16}}\n", encoding="utf-8")
    return ["estimate", str(file)]


QUESTIONS: list[tuple[str, int, Arguments]] = [
    ("models-show", 0, lambda _: ["models", "show", "llama-3.2-1b"]),
    ("estimate", 0, asked("estimate", "megatron-25-llama-3.2-1b")),
    ("estimate", 3, too_large),
    ("fit", 0, lambda _: ["fit", "--model", "llama-3.2-1b", "--chip", "h100-sxm", "--chips", "1"]),
    ("simulate", 0, asked("simulate", "1f1b-megatron")),
    ("plan", 0, planned("gpt2-1.5b", "--chips", "8", "--tokens", "1T")),
    ("plan", 3, planned("gpt3-13b", "--chips", "1")),
    ("plan-chips", 0, planned("gpt2-1.5b", "--chips", "8,16")),
    ("place", 0, asked("place", "uniform-8")),
    ("place", 3, asked("place", "infeasible-16")),
    ("explore", 0, explored("step_time")),
    ("explore", 0, explored("step_time", "area")),
    ("explore", 0, explored("step_time", explain=True)),
    ("validate", 0, validated),
]


def undescribed(answer: Any, part: dict[str, Any], defs: dict[str, Any], path: str = "") -> Iterator[str]:
    """Fields of an answer that its schema says nothing of."""
    if "$ref" in part:
        part = defs[part["$ref"].rpartition("/")[2]]
    for each in part.get("anyOf", ()):
        if "required" not in each and Draft202012Validator({**each, "$defs": defs}).is_valid(answer):
            yield from undescribed(answer, each, defs, path)
    if isinstance(answer, dict) and "properties" in part:
        for name, value in answer.items():
            if name not in part["properties"]:
                yield f"{path}.{name}"
            else:
                yield from undescribed(value, part["properties"][name], defs, f"{path}.{name}")
    elif isinstance(answer, dict) and isinstance(part.get("additionalProperties"), dict):
        for name, value in answer.items():
            yield from undescribed(value, part["additionalProperties"], defs, f"{path}.{name}")
    elif isinstance(answer, list) and isinstance(part.get("items"), dict):
        for value in answer:
            yield from undescribed(value, part["items"], defs, f"{path}[]")


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.name.split(".")[0])
def test_schemas_are_valid(path):
    Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_each_schema_of_an_answer_is_tried_on_an_answer():
    names = {path.name.removesuffix(".schema.json") for path in SCHEMAS.glob("*.json")} - GENERATOR["FILES"].keys()
    assert names == {name for name, _, _ in QUESTIONS}


@pytest.mark.parametrize(("name", "code", "question"), QUESTIONS, ids=[f"{name}-{code}" for name, code, _ in QUESTIONS])
def test_answers_keep_to_their_schema_and_all_their_fields_are_described(name, code, question, command, tmp_path):
    ended, printed, complaint = command(*question(tmp_path), "--json")
    assert ended == code, complaint
    answer, root = json.loads(printed), schema(name)
    Draft202012Validator(root).validate(answer)
    assert sorted(set(undescribed(answer, root, root.get("$defs", {})))) == [], "describe them in answers.yaml"


def test_an_answer_without_a_promised_field_is_noticed():
    promised = ("fits", "step_time_s", "mfu", "memory_bytes", "provenance")
    validator = Draft202012Validator(schema("estimate"))
    missing = [error.message.split("'")[1] for error in validator.iter_errors({})]
    assert set(promised) <= set(missing)


# --- files ---------------------------------------------------------------------------------------------------------


def test_the_schemas_of_files_allow_the_files_that_ship():
    studies = [read_document(path) for path in (ROOT / "studies").glob("*.yaml")]
    catalogue = sorted((ROOT / "src" / "dovetail" / "models" / "data").glob("*.yaml"))
    files = {
        "study-file": [study for study in studies if "jobs" in study],
        "model-file": [read_document(path) for path in catalogue[::8]],
        "plan-file": [question["file"] for question in questions("simulate")],
    }
    for name, documents in files.items():
        validator = Draft202012Validator(schema(name))
        assert len(documents) > 5, name
        assert [error.message for document in documents for error in validator.iter_errors(document)] == []


def test_the_schemas_of_files_refuse_a_field_that_does_not_exist():
    for name in GENERATOR["FILES"]:
        messages = [error.message for error in Draft202012Validator(schema(name)).iter_errors({"colour": 1})]
        assert any("'colour' was unexpected" in message for message in messages), name


# --- structure -----------------------------------------------------------------------------------------------------


def in_nav() -> set[Path]:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return {DOCS / name for name in re.findall(r"[\w/-]+\.md", json.dumps(nav))}


def linked(page: Path) -> set[Path]:
    """The pages that a page links to; examples in code blocks do not count."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(\s*([^)#\s]+\.md)(?:#[^)]*)?\)", text)
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def within(clicks: int) -> set[Path]:
    """The pages that one reaches from the start page by so many links."""
    reached = {DOCS / "index.md"}
    for _ in range(clicks):
        reached |= {target for page in reached if page.exists() for target in linked(page)}
    return reached


def test_no_page_is_too_long():
    pages = [*PAGES, ROOT / "README.md"]
    words = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert {name: number for name, number in words.items() if number > MOST_WORDS} == {}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_README_LINES


def test_each_page_is_in_the_nav():
    assert sorted(str(page.relative_to(DOCS)) for page in in_nav() ^ set(PAGES)) == []


def test_each_page_is_within_two_clicks_of_the_start():
    assert sorted(str(page.relative_to(DOCS)) for page in in_nav() - within(MOST_CLICKS)) == []
