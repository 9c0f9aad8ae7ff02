"""The question of an answer: its names, and the command that asks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.plans.narrowed_space import narrowing_texts
from dovetail.report.page.answer_file import CertificatePart


def model_name(job: Mapping[str, Any]) -> str:
    """The name of the model a job trains."""
    model = job["model"]
    return str(model if isinstance(model, str) else model.get("name", "your model"))


def chip_name(cluster: Mapping[str, Any]) -> str:
    """The name of the chip, or of the cluster where that is named."""
    chip = cluster.get("chip") or cluster.get("name") or "chips"
    return str(chip if isinstance(chip, str) else chip.get("name", "your chip"))


def question_words(job: Mapping[str, Any], cluster: Mapping[str, Any], chips: str) -> list[str] | None:
    """The words of `dovetail plan` that ask for this; None where names do not say all of it."""
    named = cluster.keys() <= {"name", "chip", "chips", "framework"} and isinstance(job["model"], str)
    if not named or isinstance(cluster.get("chip"), dict):
        return None
    place = {"--cluster": cluster["name"]} if "name" in cluster else {"--chip": cluster["chip"]}
    flags = {"--model": job["model"], **place, "--chips": chips, "--global-batch": job["global_batch"]}
    flags |= {"--seq-len": job["seq_len"], "--precision": job["precision"], "--framework": cluster["framework"]}
    words = ["dovetail", "plan", *(str(word) for pair in flags.items() for word in pair)]
    if adapters := job.get("adapters"):
        targets = adapters["targets"]
        words += ["--lora", str(adapters["rank"])]
        words += ["--lora-targets", targets if isinstance(targets, str) else ",".join(targets)]
        words += ["--qlora"] if adapters["base"] == "nf4" else []
    return words


def narrowing_words(*certificates: CertificatePart) -> list[str]:
    """The words that narrow the space as the spaces of these are, all of them together."""
    by_field: dict[str, dict[str, None]] = {}
    for certificate in certificates:
        for text in narrowing_texts(certificate.space):
            name, _, values = text.partition("=")
            by_field.setdefault(name, {}).update(dict.fromkeys(values.split(",")))
    return [word for name, values in by_field.items() for word in ("--fix", f"{name}={','.join(values)}")]
