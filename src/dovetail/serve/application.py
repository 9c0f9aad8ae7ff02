"""What the page asks for and what it gets: answers, comparisons, what-if, launch files, a running study.

Questions are answered one after the other, in this process; recent answers are remembered.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, cast

from dovetail.accuracy import left_out_predictions, predict, published_runs, score
from dovetail.accuracy.scoreboard import fields as scoreboard_fields
from dovetail.documents import validate
from dovetail.errors import InputError, one_of
from dovetail.explanation.explain import explain, shortfall
from dovetail.explanation.smallest_fix import smallest_fixes
from dovetail.frozen import frozen
from dovetail.launch.starting.start_file import started
from dovetail.launch.targets import EXPORTERS
from dovetail.plans.launch_limits import LAUNCHES
from dovetail.plans.plan_file import Task, plan_of_document
from dovetail.plans.runs import check_runs
from dovetail.plans.words import plan_words
from dovetail.plans.write import plan_part
from dovetail.report.answer_fields import answer_fields
from dovetail.report.page.answer_file import AnswerFile, ScoreboardFile
from dovetail.report.page.answers import answer_page
from dovetail.report.page.document import PLOTLY, answer_html, asset
from dovetail.report.page.scoreboards import scoreboard_page
from dovetail.report.page.studies import study_page
from dovetail.search.answer import Answer
from dovetail.search.plan import plan
from dovetail.search.progress import SearchProgress
from dovetail.serve.page import page_html, script
from dovetail.serve.questions import FormQuestion, asked
from dovetail.step.evaluate import evaluate
from dovetail.step.ties import TIE_MARGIN
from dovetail.units import bytes_text, percent_text, seconds_text

#: Seconds a search may take, each search of an explanation, and each of those for the smallest fix.
SEARCH_S, EXPLAIN_S, FIX_S = 60.0, 5.0, 5.0
#: Answers that are remembered.
MOST_ANSWERS = 32
#: Fields of a plan that a person may change, and those that stay as they are; the others follow from them.
EDITED = ("tensor_parallel", "context_parallel", "pipeline_parallel", "virtual_stages", "micro_batch", "zero_stage")
STAYING = ("expert_parallel", "recompute")
_HTML, _JSON, _SCRIPT = "text/html; charset=utf-8", "application/json", "text/javascript; charset=utf-8"


@frozen
class Response:
    """What goes back to the browser."""

    content: str
    kind: str = _HTML
    status: int = 200
    #: the name of a file to save it as
    file: str | None = None


class Application:
    """The page's requests, by path."""

    def __init__(self, run_dir: Path | None = None) -> None:
        self.run_dir = run_dir
        self._answers: OrderedDict[FormQuestion, Answer] = OrderedDict()
        self._one_at_a_time = threading.Lock()
        self._progress = ""
        self._scoreboard: str | None = None
        self._routes: dict[str, Callable[[Mapping[str, str]], Response]] = {
            "": self._page,
            "plotly.js": lambda _: Response(asset(PLOTLY), _SCRIPT),
            "page.js": lambda _: Response(f"{asset('page.js')}\n{script()}", _SCRIPT),
            "progress": lambda _: Response(json.dumps({"text": self._progress}), _JSON),
            "answer": self._answer,
            "what-if": self._what_if,
            "launch": self._launch,
            "study": self._study,
            "accuracy": self._accuracy,
        }

    def respond(self, path: str, fields: Mapping[str, str]) -> Response:
        """The response to a request; a mistake is told in a sentence."""
        route = self._routes.get(path)
        if route is None:
            return Response("<p class='wrong'>There is no such page.</p>", status=404)
        try:
            return route(fields)
        except InputError as error:
            # an answer too: the page shows it where the answer would be
            return Response(f"<p class='wrong' role='alert'>{escape(str(error))}</p>")

    def _page(self, _: Mapping[str, str]) -> Response:
        return Response(page_html(None if self.run_dir is None else str(self.run_dir)))

    def _answer(self, fields: Mapping[str, str]) -> Response:
        question = asked(fields)
        if len(question.chips_of) > 1:
            return Response(self._compared(question))
        answer = self._searched(question)
        if answer.evaluation is None:
            with self._one_at_a_time:
                return Response(_nothing_fits(answer))
        explanation = None
        if fields.get("explain"):
            with self._one_at_a_time:
                explanation = explain(answer, time_limit_s=EXPLAIN_S)
        task = Task(answer.job, answer.cluster, answer.framework, answer.plan)
        document = validate(AnswerFile, answer_fields(answer, explanation=explanation), "answer")
        page = answer_page(document, task, "")
        return Response(_tools(answer) + answer_html(page))

    def _searched(self, question: FormQuestion) -> Answer:
        """The answer to a question, of now or of before."""
        with self._one_at_a_time:
            if question not in self._answers:
                try:
                    self._answers[question] = plan(
                        *question.question(), time_limit_s=SEARCH_S, tie_margin=TIE_MARGIN, on_progress=self._notice
                    )
                finally:
                    self._progress = ""
                while len(self._answers) > MOST_ANSWERS:
                    self._answers.popitem(last=False)
            return self._answers[question]

    def _planned(self, fields: Mapping[str, str]) -> Answer:
        """The answer to a question that has one."""
        answer = self._searched(asked(fields))
        if answer.evaluation is None:
            raise InputError("plan", "is missing: none fits, or none was found", "ask for more chips or a smaller job")
        return answer

    def _notice(self, progress: SearchProgress) -> bool:
        best = "no plan yet" if progress.step_time_s is None else f"best so far {seconds_text(progress.step_time_s)}"
        gap = "" if progress.gap is None else f", gap {percent_text(progress.gap)}"
        self._progress = f"{progress.counted:,} plans, {best}{gap}"
        return False

    def _compared(self, question: FormQuestion) -> str:
        rows: list[str] = []
        for each in question.each():
            answer = self._searched(each)
            name = escape(each.chips_of[0])
            if answer.evaluation is None:
                rows.append(f"<tr><th scope='row'>{name}</th><td colspan='5'>no plan fits</td></tr>")
                continue
            best = answer.best
            texts = (
                seconds_text(best.step_time_s),
                percent_text(best.mfu),
                f"{best.tokens_per_s_per_chip:,.0f}",
                f"{bytes_text(best.peak_bytes)} of {bytes_text(best.usable_bytes)}",
                plan_words(best.plan),
            )
            cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
            rows.append(f"<tr><th scope='row'>{name}</th>{cells}</tr>")
        names = ("chip", "step", "MFU", "tokens/s per chip", "memory", "plan")
        head = "".join(f"<th scope='col'>{name}</th>" for name in names)
        return (
            f"<h1>{escape(question.model)} on {question.chips:,} chips</h1><div class='scroll' tabindex='0' "
            f"role='region' aria-label='Comparison'><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )

    def _what_if(self, fields: Mapping[str, str]) -> Response:
        answer = self._planned(fields)
        changes = _changes(fields.get("changes", "{}"))
        part = plan_part(answer.plan)
        same = [name for name in (*EDITED, *STAYING) if name in part]
        document = {"plan": {name: part[name] for name in same} | changes}
        changed = plan_of_document(document, answer.job, answer.cluster, "what if")
        check_runs(changed, answer.job, answer.cluster, answer.framework)
        cost = evaluate(changed, answer.job, answer.cluster, answer.framework, energy=False)
        difference = cost.step_time_s / answer.step_time_s - 1
        fits = f"{bytes_text(cost.peak_bytes)} of {bytes_text(cost.usable_bytes)}"
        fits = fits if cost.fits else f"does not fit: {bytes_text(cost.missing_bytes)} are missing per chip ({fits})"
        text = f"{plan_words(changed)}: {seconds_text(cost.step_time_s)} a step ({difference:+.1%}), {fits}"
        return Response(f"<p>{escape(text)}</p>")

    def _launch(self, fields: Mapping[str, str]) -> Response:
        answer = self._planned(fields)
        target, start = fields.get("to", ""), fields.get("start") or None
        if target not in EXPORTERS:
            raise InputError("to", "names no launch format", one_of(tuple(EXPORTERS), target))
        task = Task(answer.job, answer.cluster, answer.framework, answer.plan)
        launch = EXPORTERS[target].export(task)
        if start is not None:
            launch = started(start, launch, target, answer.cluster, EXPORTERS[target].version_of(None))
        return Response(launch.text, "text/plain; charset=utf-8", file=launch.name)

    def _accuracy(self, _: Mapping[str, str]) -> Response:
        with self._one_at_a_time:
            if self._scoreboard is None:
                measured = published_runs()
                answers = predict(measured.runs)
                board = scoreboard_fields(score(measured, answers, left_out_predictions(answers)), "family")
                page = scoreboard_page(validate(ScoreboardFile, board, "scoreboard"), "dovetail validate")
                self._scoreboard = answer_html(page)
        return Response(self._scoreboard)

    def _study(self, _: Mapping[str, str]) -> Response:
        if self.run_dir is None:
            raise InputError("study", "is not shown", "start `dovetail serve RUN_DIR`")
        page = study_page(str(self.run_dir), f"dovetail report {self.run_dir} --out report.html")
        return Response(answer_html(page))


def _changes(text: str) -> dict[str, Any]:
    """Fields of a plan that a person changed."""
    try:
        changes: object = json.loads(text[:2000])
    except ValueError:
        changes = None
    if not isinstance(changes, dict):
        raise InputError("changes", "are not a mapping", "send fields of a plan as JSON")
    given = {str(name): value for name, value in cast("dict[object, Any]", changes).items()}
    for name in given.keys() - set(EDITED):
        raise InputError(name, "cannot be changed here", one_of(EDITED, name))
    return given


def _nothing_fits(answer: Answer) -> str:
    proven = answer.certificate.status == "infeasible"
    fixes = smallest_fixes(answer, FIX_S)
    what = "No plan fits" if proven else "No plan that fits was found in the time given"
    listed = "".join(
        f"<li>{escape(fix.what)}: {fix.after / fix.before:.3g} times as much is enough</li>" for fix in fixes.found
    )
    return f"<h1>{what}</h1><p>{escape(shortfall(answer, fixes))}</p><ul>{listed}</ul>"


def _tools(answer: Answer) -> str:
    """What can be done with an answer: launch files, another plan, an explanation."""
    buttons = "".join(
        f"<button type='button' data-launch='{target}' data-start='{start}'>{name}</button>"
        for target in (target for target, launch in LAUNCHES.items() if launch.framework == answer.framework.name)
        for start, name in (("", f"{target} file"), ("slurm", f"{target} for Slurm"))
    )
    inputs = "".join(
        f"<label>{name.replace('_', ' ')}<input type='number' min='0' name='{name}' value='{value}'></label>"
        for name, value in ((name, getattr(answer.plan, name)) for name in EDITED)
    )
    return (
        f"<section id='tools' aria-label='What next'><div class='controls'><strong>Launch file</strong>{buttons}"
        "<button type='button' id='explain'>Explain</button></div>"
        f"<details><summary>What if the plan were another?</summary><form class='ask' id='what-if'>{inputs}"
        "<button>Estimate</button></form><div id='what-if-answer' aria-live='polite'></div></details></section>"
    )
