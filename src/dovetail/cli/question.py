"""What `dovetail plan` is asked: flags, or a plan file whose missing fields flags fill."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import dovetail as dt
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen

if TYPE_CHECKING:
    from dovetail.hardware import Cluster
    from dovetail.models import AnyModel
    from dovetail.plans.plan_file import Question

COMMAND = "dovetail plan"
#: Field of a plan file → the flag that fills it.
FLAGS = {
    "job.model": "--model",
    "job.seq_len": "--seq-len",
    "job.global_batch": "--global-batch",
    "job.precision": "--precision",
    "job.optimizer": "--optimizer",
    "job.adapters": "--lora",
    "cluster.name": "--cluster",
    "cluster.chip": "--chip",
    "cluster.chips": "--chips",
    "cluster.framework": "--framework",
}
_NEEDED = ("job.model", "job.seq_len", "job.global_batch")
MOST_COUNTS = 256


@frozen
class Asked:
    """A question that still leaves the number of chips open."""

    document: Mapping[str, Any]
    where: str
    folder: Path
    #: fields that flags gave
    flagged: frozenset[str]
    #: several numbers of chips: one question each
    counts: tuple[int, ...]

    def question(self, chips: int | None = None) -> Question:
        """The question for one number of chips, or for the document's own."""
        cluster = self.document["cluster"] | ({} if chips is None else {"chips": chips})
        try:
            from dovetail.plans.plan_file import question_of

            return question_of({**self.document, "cluster": cluster}, self.where, self.folder)
        except InputError as error:
            raise self._by_flag(error) from None

    def any_question(self) -> Question:
        """The question for the first number of chips that makes one."""
        first: InputError | None = None
        for chips in self.counts:
            try:
                return self.question(chips)
            except InputError as error:
                first = first or error
        assert first is not None, "there are several numbers of chips"
        raise first

    def cluster(self, chips: int) -> Cluster:
        """The cluster with so many chips."""
        return self.question(chips).cluster

    def framework_in_file(self, out: Path) -> str:
        """The framework as a plan file written there names it."""
        from dovetail.plans.plan_file import is_path

        name = str(self.document["cluster"].get("framework", "megatron"))
        return os.path.relpath(self.folder / name, out.parent) if is_path(name) else name

    def _by_flag(self, error: InputError) -> InputError:
        """The error at the flag where the user wrote what is wrong."""
        field = error.where.removeprefix(f"{self.where}: ")
        if field.startswith("job.adapters.") and "job.adapters" in self.flagged:
            return InputError("--lora-targets" if "targets" in field else "--lora", error.what, error.fix)
        if field in self.flagged:
            return InputError(FLAGS[field], error.what, error.fix)
        return InputError(field, error.what, error.fix) if self.where == COMMAND else error


def adapters_of(rank: int | None, targets: str | None, *, quantized: bool) -> dict[str, Any] | None:
    """The job's adapters as flags give them; None where they give none."""
    if rank is None:
        if targets is not None or quantized:
            raise InputError("--qlora" if quantized else "--lora-targets", "needs a rank", "give it, e.g. --lora 16")
        return None
    from dovetail.models.adapters import Target

    words = [word.strip() for word in ("q,k,v,o" if targets is None else targets).split(",")]
    if words != ["all"] and set(words) - set(get_args(Target)):
        fix = f"it should be all, or some of {', '.join(get_args(Target))}"
        raise InputError("--lora-targets", f"is {quoted(targets)}", fix)
    return {"rank": rank, "targets": "all" if words == ["all"] else words, "base": "nf4" if quantized else "bf16"}


def asked(file: Path | None, given: Mapping[str, str | int | dict[str, Any] | None], chips: str | None) -> Asked:
    """The question a plan file and flags make together; `given` is by field of the plan file."""
    if given.get("cluster.name") and given.get("cluster.chip"):
        raise InputError("--cluster", "cannot be combined with --chip", "a cluster already names its chip")
    where, folder = (COMMAND, Path()) if file is None else (str(file), file.parent)
    counts = None if chips is None else chip_counts(chips)
    flags: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    if counts is not None and len(counts) == 1:
        flags["cluster.chips"] = counts[0]
    for field in flags.keys() & {"job.model", "cluster.name", "cluster.chip", "cluster.framework"}:
        flags[field] = _model(flags[field], folder) if field == "job.model" else _from(folder, flags[field])
    document = _merged({} if file is None else _parts(file), flags, where)
    if counts is not None and len(counts) > 1 and "chips" in document["cluster"]:
        raise _contradiction(where, "cluster.chips", document["cluster"]["chips"], chips)
    _check_complete(document, where, has_counts=counts is not None)
    several = counts if counts is not None and len(counts) > 1 else ()
    return Asked(document, where, folder, frozenset({*flags, "cluster.chips"} if counts else flags), several)


def complete(document: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A plan file's document plus the flags; one sentence asks for whatever is still missing."""
    flags = {field: value for field, value in given.items() if value is not None}
    if "cluster.name" in flags and "cluster.chip" in flags:
        raise InputError("--cluster", "cannot be combined with --chip", "a cluster already names its chip")
    if "job.model" in flags:
        flags["job.model"] = _model(flags["job.model"], Path())
    merged = _merged(document, flags, where)
    _check_complete(merged, where, has_counts=False)
    return merged


def chip_counts(text: str) -> tuple[int, ...]:
    """Numbers of chips: 256; 256,512,768; 256..4096 by doubling; 256..4096:256 by steps."""
    span = re.fullmatch(r"(\d{1,7})\.\.(\d{1,7})(?::(\d{1,7}))?", text.strip())
    if span is not None:
        low, high, step = int(span[1]), int(span[2]), int(span[3] or 0)
        if low < 1 or low > high or (span[3] and not step):
            raise InputError("--chips", f"{quoted(text)} is an empty range", "write it from low to high, 256..4096")
        counts = list(range(low, high + 1, step)) if step else _doubled(low, high)
    else:
        words = [word.strip().replace("_", "") for word in text.split(",")]
        if not all(re.fullmatch(r"\d{1,7}", word) for word in words):
            fix = "write it as 256, as 256,512,768, as 256..4096 (doubling) or as 256..4096:256 (by steps)"
            raise InputError("--chips", f"is {quoted(text)}", fix)
        counts = [int(word) for word in words]
    if len(counts) > MOST_COUNTS:
        raise InputError("--chips", f"are {len(counts)} numbers", f"give at most {MOST_COUNTS}")
    return tuple(sorted(set(counts)))


def _doubled(low: int, high: int) -> list[int]:
    counts = [low]
    while counts[-1] * 2 <= high:
        counts.append(counts[-1] * 2)
    return counts


def _model(name: str, folder: Path) -> str | AnyModel:
    """A catalogue name or the path of a model file, as the document has it; any other model is read here, once."""
    if name in dt.models.names():
        return name
    from dovetail.models.catalogue import is_config
    from dovetail.plans.plan_file import is_path

    if is_path(name) and not is_config(name):
        return _from(folder, name)
    try:
        model = dt.models.load(name)
    except InputError as error:
        raise InputError("--model" if error.where == "model" else error.where, error.what, error.fix) from None
    is_listed = model.name in dt.models.names() and dt.models.from_catalogue(model.name) == model
    return model.name if is_listed else model


def _from(folder: Path, name: str) -> str:
    """A path of the command line as a document in that folder would write it."""
    from dovetail.plans.plan_file import is_path

    if not is_path(name) or folder == Path():
        return name
    return os.path.relpath(name, folder)


def _parts(file: Path) -> dict[str, Any]:
    from dovetail.documents import read_document

    return read_document(file)


def _merged(document: Mapping[str, Any], flags: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The document plus the flags; where both give a field, they must agree."""
    merged: dict[str, Any] = dict(document)
    for part in ("job", "cluster"):
        fields: object = merged.get(part) or {}
        if not isinstance(fields, Mapping):
            raise InputError(f"{where}: {part}", f"is {quoted(fields)}", "it should hold a mapping of fields")
        merged[part] = dict(cast("Mapping[str, Any]", fields))
    for field, value in flags.items():
        part, name = field.split(".")
        if name in merged[part] and _listed(field, merged[part][name]) != value:
            raise _contradiction(where, field, merged[part][name], value)
        merged[part][name] = value
    return merged


def _listed(field: str, value: Any) -> Any:
    """A field of the file as `_model` gives the flag: an alias of a model becomes its name in the catalogue."""
    return dt.models.catalogue_name(value) or value if field == "job.model" and isinstance(value, str) else value


def _contradiction(where: str, field: str, in_file: object, by_flag: object) -> InputError:
    said = by_flag if isinstance(by_flag, str | int) else "another model"
    if field == "job.adapters":
        said = "otherwise"
    what = f"is {quoted(in_file)}, but {FLAGS[field]} says {said}"
    return InputError(f"{where}: {field}", what, "drop one of them")


def _check_complete(document: Mapping[str, Any], where: str, *, has_counts: bool) -> None:
    job, cluster = document["job"], document["cluster"]
    missing = [FLAGS[field] for field in _NEEDED if field.removeprefix("job.") not in job]
    if "name" not in cluster and "chip" not in cluster:
        missing.append("--cluster or --chip")
    elif "chip" in cluster and "name" not in cluster and "chips" not in cluster and not has_counts:
        missing.append("--chips")
    if missing:
        named = missing[0] if len(missing) == 1 else f"{', '.join(missing[:-1])} and {missing[-1]}"
        fix = "give them" if len(missing) > 1 else "give it"
        raise InputError(where, f"needs {named}", f"{fix}, or a plan file that says so" if where == COMMAND else fix)
