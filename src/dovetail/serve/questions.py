"""The form's fields as a question; what a person leaves out is filled with what training runs usually have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError, quoted
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan_file import question_of

#: Tokens of a step and of a sequence, where nobody says.
USUAL_TOKENS, USUAL_SEQ_LEN = 4 * 2**20, 4096
USUAL_FRAMEWORK = "megatron"
#: Chips compared at once.
MOST_COMPARED = 6
_NUMBERS = ("chips", "global_batch", "seq_len")


@frozen
class FormQuestion:
    """What the form says, complete."""

    model: str
    chips_of: tuple[str, ...]
    chips: int
    global_batch: int
    seq_len: int
    framework: str

    def question(self) -> tuple[Job, Cluster, Framework]:
        """Job, cluster and framework, by the name of a chip, a cluster or a wafer; of several the first."""
        job = {"model": self.model, "seq_len": self.seq_len, "global_batch": self.global_batch}
        (name, *_) = self.chips_of
        kind = "name" if name in (*hardware.cluster_names(), *hardware.wafer_names()) else "chip"
        cluster = {kind: name, "chips": self.chips, "framework": self.framework}
        try:
            found = question_of({"job": job, "cluster": cluster}, "question")
        except InputError as error:
            raise InputError(error.where.removeprefix("question: "), error.what, error.fix) from None
        return found.job, found.cluster, found.framework

    def each(self) -> list[FormQuestion]:
        """A question for every chip that is named."""
        return [replace(self, chips_of=(name,)) for name in self.chips_of]


def asked(fields: Mapping[str, str]) -> FormQuestion:
    """The question in a form's fields."""
    model = _text(fields, "model", "name a model of the catalogue, a model file or a config.json")
    named = models.catalogue_name(model) or model
    chips_of = tuple(
        name.strip() for name in _text(fields, "chip", "name a chip, a cluster or a wafer").split(",") if name.strip()
    )
    if len(chips_of) > MOST_COMPARED:
        raise InputError("chip", f"names {len(chips_of)} chips", f"compare up to {MOST_COMPARED} at once")
    numbers = {name: _number(name, fields[name]) for name in _NUMBERS if fields.get(name, "").strip()}
    if "chips" not in numbers:
        raise InputError("number of chips", "is missing", "say how many there are, e.g. 64")
    seq_len = numbers.get("seq_len", USUAL_SEQ_LEN)
    batch = numbers.get("global_batch", max(USUAL_TOKENS // seq_len, 1))
    framework = fields.get("framework", "").strip() or USUAL_FRAMEWORK
    return FormQuestion(named, chips_of, numbers["chips"], batch, seq_len, framework)


def choices() -> dict[str, Any]:
    """Names the form offers."""
    others = [name for name in frameworks.names() if name not in (USUAL_FRAMEWORK, "ideal", "wafer")]
    return {
        "models": list(models.names()),
        "chips": [*hardware.chip_names(), *hardware.cluster_names(), *hardware.wafer_names()],
        "frameworks": [USUAL_FRAMEWORK, *others],
    }


def _text(fields: Mapping[str, str], name: str, fix: str) -> str:
    text = fields.get(name, "").strip()
    if not text:
        raise InputError(name, "is missing", fix)
    return text


def _number(name: str, text: str) -> int:
    cleaned = text.strip().replace(",", "")
    if not cleaned.isdecimal() or len(cleaned) > 9 or int(cleaned) == 0:
        raise InputError(name.replace("_", " "), f"is {quoted(text)}", "it should be a whole number of 1 or more")
    return int(cleaned)
