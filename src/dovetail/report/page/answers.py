"""The page of a plan: what it costs, what is proven of it, what else was close, and what more hardware is worth."""

from __future__ import annotations

import shlex
from typing import cast

from dovetail.explanation.bottleneck import COMPUTATION
from dovetail.plans.plan_file import Task
from dovetail.plans.words import ABBREVIATIONS
from dovetail.report.certificate_words import counts_text, proof_text
from dovetail.report.page.answer_file import AnswerFile, ExplanationPart, MarginalPart, NeighbourPart
from dovetail.report.page.charts import COMPUTING, IDLE, SENDING, signed_bars, stacked, waterfall
from dovetail.report.page.document import Page, Section, Table
from dovetail.report.page.questions import chip_name, model_name, narrowing_words, question_words
from dovetail.report.page.simulated_step import step_sections
from dovetail.search.answer import Certificate
from dovetail.step.capacity import memory_limit
from dovetail.units import (
    bytes_text,
    count_text,
    dollars_text,
    duration_text,
    percent_text,
    quantity_text,
    seconds_text,
)

#: Parts of a step in which a chip neither computes nor sends.
WAITING = ("pipeline bubble", "waiting for the host", "between micro-batches", "between steps")
#: Stages that a chart shows; of more, each second, third, ...
MOST_STAGES = 32
GIB = 2.0**30


def answer_page(answer: AnswerFile, task: Task, command: str) -> Page:
    """The page of a plan, the task being the answer's."""
    sections = [_time(answer), _memory(answer), *step_sections(task), *_traced(answer), *_close(answer)]
    if answer.explanation is not None:
        sections += _explained(answer.explanation)
    return Page(
        title=f"{model_name(answer.job)} on {answer.cluster['chips']:,} × {chip_name(answer.cluster)}",
        sentence=_sentence(answer),
        cards=_cards(answer),
        sections=tuple(sections),
        command="\n".join([*_asked(answer, task), command]),
        provenance=provenance_texts(answer.provenance),
    )


def _asked(answer: AnswerFile, task: Task) -> list[str]:
    """The command that gave the answer, where flags say all of it."""
    certificate = answer.certificate
    words = question_words(answer.job, answer.cluster, str(answer.cluster["chips"]))
    if certificate is None or answer.plan.get("layouts") or words is None:
        return []
    words += narrowing_words(certificate)
    limit = certificate.memory_limit_bytes
    if limit is not None and limit != memory_limit(task.cluster.chip, task.framework):
        words += ["--memory-limit", f"{limit / GIB:.15g} GiB"]
    return [f"{shlex.join(words)} --explain --json > answer.json"]


def _sentence(answer: AnswerFile) -> str:
    job, framework = answer.job, answer.cluster.get("framework", "")
    trained = f"{job['global_batch']:,} sequences of {job['seq_len']:,} tokens take {seconds_text(answer.step_time_s)}"
    if not answer.fits:
        return f"{answer.words} does not fit: {bytes_text(answer.memory_bytes.peak)} per chip are needed."
    proof = "" if answer.certificate is None else f" {_proof(answer)[0].capitalize()}."
    if answer.recommended_loss and answer.fastest is not None:
        takes = seconds_text(answer.fastest.step_time_s)
        proof = f" The fastest plan, {answer.fastest.words}, takes {takes}.{proof}"
    return f"With {framework}, run {answer.words}: {trained} a step.{proof}"


def _proof(answer: AnswerFile) -> tuple[str, str]:
    certificate = cast("Certificate", answer.certificate)  # the same fields
    return proof_text(certificate), counts_text(certificate)


def _cards(answer: AnswerFile) -> tuple[tuple[str, str, str], ...]:
    low, high = answer.interval_s
    memory = answer.memory_bytes
    cards = [
        (
            "step time",
            seconds_text(answer.step_time_s),
            f"measured: {seconds_text(low)} to {seconds_text(high)} (9 in 10)",
        ),
        ("MFU", percent_text(answer.mfu), f"{answer.tokens_per_s_per_chip:,.0f} tokens/s per chip"),
        (
            "memory",
            bytes_text(memory.peak),
            f"of {bytes_text(memory.usable)}, {percent_text(memory.peak / memory.usable)}",
        ),
    ]
    if answer.energy_j is not None:
        tokens = answer.job["global_batch"] * answer.job["seq_len"]
        cards.append(
            ("energy", f"{quantity_text(answer.energy_j, 'J')} a step", f"{answer.energy_j / tokens:.3g} J a token")
        )
    if answer.certificate is not None:
        optimal, loss = answer.certificate.status == "optimal", answer.recommended_loss or 0.0
        value = f"{loss:.1%} from the fastest" if loss else "the fastest" if optimal else "the fastest found"
        proven = "proven" if optimal else f"at most {answer.certificate.gap or 0.0:.1%} from the best"
        cards.append(("certificate", value, f"{proven}, {answer.certificate.counted:,} plans"))
    if answer.training is not None:
        run = answer.training
        cost = f"{run.chip_hours:,.0f} chip-hours" + (f", {dollars_text(run.cost_usd)}" if run.cost_usd else "")
        cards.append((f"{count_text(run.tokens)} tokens", duration_text(run.train_s), cost))
    return tuple(cards)


def _time(answer: AnswerFile) -> Section:
    parts = [(name, seconds) for name, seconds in answer.breakdown.items() if seconds > 1e-9 * answer.step_time_s]
    computing = sum(seconds for name, seconds in parts if name in COMPUTATION) / answer.step_time_s
    waiting = sum(seconds for name, seconds in parts if name in WAITING) / answer.step_time_s
    lead = (
        f"Of a step the busiest stage computes {percent_text(computing)} (blue), waits for messages "
        f"{percent_text(max(1 - computing - waiting, 0.0))} (orange) and is idle {percent_text(waiting)} (grey)."
    )
    coloured = [
        (name, s, COMPUTING if name in COMPUTATION else IDLE if name in WAITING else SENDING) for name, s in parts
    ]
    chart = waterfall(coloured, ("step", answer.step_time_s), f"Seconds of a step by part. {lead}")
    rows = tuple((name, seconds_text(s), percent_text(s / answer.step_time_s)) for name, s in parts)
    return Section("time", "Where the time goes", lead, (chart,), Table(("part", "seconds", "of the step"), rows))


def _memory(answer: AnswerFile) -> Section:
    memory = answer.memory_bytes
    step = -(-len(memory.by_stage) // MOST_STAGES)
    stages = range(0, len(memory.by_stage), step)
    names = [name for name in memory.by_stage[0] if any(parts.get(name, 0.0) > 0 for parts in memory.by_stage)]
    parts = {name: [memory.by_stage[stage].get(name, 0.0) / GIB for stage in stages] for name in names}
    totals = [sum(each.values()) for each in memory.by_stage]
    fullest = max(range(len(totals)), key=totals.__getitem__)
    lead = (
        f"Stage {fullest} is the fullest: {bytes_text(memory.peak)} of the {bytes_text(memory.usable)} that programs "
        f"get of a chip, {bytes_text(max(memory.usable - memory.peak, 0.0))} free."
    )
    chart = stacked([str(s) for s in stages], parts, "GiB", memory.usable / GIB, f"Memory of a chip by stage. {lead}")
    rows = tuple(
        (
            f"stage {stage}",
            *(bytes_text(memory.by_stage[stage].get(name, 0.0)) for name in names),
            bytes_text(totals[stage]),
        )
        for stage in stages
    )
    return Section("memory", "What fills the memory", lead, (chart,), Table(("stage", *names, "all"), rows))


def _traced(answer: AnswerFile) -> list[Section]:
    """What of a traced model the figures do not have, or have as something else."""
    if not answer.approximated and not answer.left_out:
        return []
    share = f"take {percent_text(answer.approximated_share)} of the operators' time"
    lead = f"Operators that stand for something else {share}." if answer.approximated else ""
    left = tuple(f"Left out: {each}." for each in answer.left_out)
    rows = tuple((each.layer, each.operator, each.words) for each in answer.approximated)
    table = Table(("layer", "operator", "what stands for what"), rows) if rows else None
    return [Section("traced", "What the traced model approximates", lead, (), table, notes=left)]


def _close(answer: AnswerFile) -> list[Section]:
    """What is proven, and other degrees that came close."""
    if answer.certificate is None:
        return []
    proof, counts = _proof(answer)
    notes = (f"{counts.capitalize()}.", f"Space: {answer.certificate.space_text}.")
    others = answer.alternatives
    rows = tuple((each.words, seconds_text(each.step_time_s), f"{each.loss or 0.0:+.1%}") for each in others)
    table = Table(("other degrees that were evaluated", "step", "slower"), rows) if rows else None
    lead = f"{proof.capitalize()}. ({ABBREVIATIONS}.)"
    return [Section("proof", "What is proven", lead, (), table, open=True, notes=notes)]


def _explained(explanation: ExplanationPart) -> list[Section]:
    sections: list[Section] = []
    near = [each for each in explanation.neighbours if each.loss is not None]
    near.sort(key=lambda each: each.loss or 0.0)
    if near:
        bars = [(_choice(each), [each.loss], each.words or "") for each in near]
        words = "What the best plan loses with one choice made differently: " + ", ".join(
            f"{_choice(each)} {each.loss or 0.0:+.1%}" for each in near
        )
        chart = signed_bars(bars, ("slower than the fastest plan",), words)
        lead = "Change one choice of the fastest plan, let the search choose the rest, and this is what you lose."
        sections.append(Section("neighbours", "Neighbouring plans", lead, (chart,), _neighbour_table(explanation)))
    worth = sorted(explanation.marginal, key=lambda each: -abs(each.gain or 0.0))
    if worth:
        bars = [(f"{each.what} {each.change}", [each.gain, each.same_plan_gain], each.words or "") for each in worth]
        words = "What more hardware gains: " + ", ".join(
            f"{each.what} {each.change} {each.gain or 0.0:+.1%}" for each in worth
        )
        chart = signed_bars(bars, ("with the best plan for it", "with the same plan"), words)
        lead = f"Bottleneck: {explanation.bottleneck}."
        sections.append(Section("worth", "What more hardware is worth", lead, (chart,), _worth_table(worth)))
    if explanation.doubts:
        lead = "What the figures rest on, and where they may be off."
        sections.append(Section("doubts", "Doubts", lead, notes=explanation.doubts))
    return sections


def _choice(each: NeighbourPart) -> str:
    return f"{each.field.replace('_', ' ')} {each.value}"


def _neighbour_table(explanation: ExplanationPart) -> Table:
    rows = tuple(
        (_choice(each), _seconds(each.step_time_s), _gain(each.loss), each.words or _why(each.proven))
        for each in explanation.neighbours
    )
    return Table(("choice", "step", "slower", "best plan with it"), rows)


def _worth_table(worth: list[MarginalPart]) -> Table:
    rows = tuple(
        (f"{each.what} {each.change}", _seconds(each.step_time_s), _gain(each.gain), each.words or _why(each.proven))
        for each in worth
    )
    return Table(("more of", "step", "faster", "best plan with it"), rows)


def _why(proven: bool) -> str:
    return "no plan fits" if proven else "nothing found in time"


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds_text(value)


def _gain(value: float | None) -> str:
    return "" if value is None else f"{value:+.2%}"


def provenance_texts(provenance: dict[str, object]) -> dict[str, str]:
    """Versions, data and calibration as names and texts."""
    texts: dict[str, str] = {}
    for name, value in provenance.items():
        if isinstance(value, dict):
            parts = cast("dict[str, object]", value)
            texts[name] = ", ".join(f"{inner} {text}" for inner, text in parts.items())
        else:
            texts[name] = str(value)
    return texts
