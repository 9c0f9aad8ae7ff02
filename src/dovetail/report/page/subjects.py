"""What a page is about: a plan file, the JSON answer of a command, or the run directory of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.documents import read_document, validate
from dovetail.errors import InputError
from dovetail.report.page.answer_file import AnswerFile, FrontFile, ScoreboardFile, is_answer, is_front, is_scoreboard
from dovetail.report.page.answers import answer_page
from dovetail.report.page.chip_counts import front_page
from dovetail.report.page.document import Page
from dovetail.report.page.plan_files import plan_file_page
from dovetail.report.page.scoreboards import scoreboard_page
from dovetail.report.page.studies import study_page


def page_of_answer(document: dict[str, Any], where: str, command: str, folder: Path = Path()) -> Page:
    """The page of what a command printed with --json."""
    if is_scoreboard(document):
        return scoreboard_page(validate(ScoreboardFile, document, where), command)
    if "run_dir" in document:
        return study_page(str(document["run_dir"]), command)
    no_plan = "has no plan: nothing fits, or nothing was found"
    if is_front(document):
        front = validate(FrontFile, document, where)
        best = next((point for point in front.with_plans if point.chips == front.best_chips), None)
        if best is None:
            raise InputError(where, no_plan, "ask about more chips")
        return front_page(front, best, command)
    if not is_answer(document):
        what = "is no answer with a plan, a study or a scoreboard"
        raise InputError(where, what, "give what `plan`, `estimate`, `explore` or `validate` prints with --json")
    if document.get("plan") is None:
        raise InputError(where, no_plan, "ask a question that has an answer")
    answer = validate(AnswerFile, document, where)
    return answer_page(answer, answer.task(where, folder), command)


def page_of(path: Path, command: str, *, search: bool = True, time_limit_s: float | None = None) -> Page:
    """The page of a run directory, a plan file, or an answer in a JSON file.

    Of a plan file all plans are searched, for its certificate and explanation, unless `search` is off.
    """
    if path.is_dir():
        return study_page(str(path), command)
    if path.suffix.lower() in (".yaml", ".yml"):
        return plan_file_page(path, command, search=search, time_limit_s=time_limit_s)
    return page_of_answer(read_document(path), str(path), command, path.parent)
