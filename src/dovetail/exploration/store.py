"""The run directory of a study: the resolved study, a Parquet part for each batch, their index, the result.

Files are written atomically, and a part counts only with its index entry, which has its digest. Batches give the same
bytes whenever they run, so we simply rerun what is missing or damaged. Next to the study is what computed the parts:
nothing else goes on with them.
"""
# the types of pyarrow are unknown
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dovetail.digests import STUDY_PACKAGES, package_provenance
from dovetail.errors import InputError, require_package
from dovetail.exploration import records
from dovetail.exploration.arrow import Columns, columns_of, folder_at, joined, parquet_bytes, parquet_table
from dovetail.exploration.folder import Folder, LocalFolder
from dovetail.exploration.progress_file import ProgressFile
from dovetail.exploration.records import (
    INDEX,
    PARTS,
    RESULT,
    SCHEMA_VERSION,
    STOPPED,
    STUDY,
    TIMING,
    DamagedError,
    to_json,
)
from dovetail.frozen import frozen

if TYPE_CHECKING:
    from dovetail.exploration.arrow import Table


_READS = "to read the designs of a run"


@frozen
class Part:
    """The result of one batch."""

    level: str
    number: int
    #: at least one, all of one length: arrays of int64, float64 or bool, or texts
    columns: Columns
    #: JSON: counts and the like, finite numbers only
    facts: Mapping[str, Any]


class RunStore:
    """A run directory; `open` locks it for writing, `view` only reads."""

    #: whether what was written can be read again
    saves = True

    def __init__(self, where: str, folder: Folder, study: dict[str, Any], *, writes: bool) -> None:
        self.where = where
        #: the resolved study
        self.study = study
        #: messages about damaged files that will be redone
        self.repairs: list[str] = []
        self._folder = folder
        self._writes = writes
        self._index: dict[str, set[int]] | None = None
        #: of parts that were written or found intact
        self._digests: dict[str, str] = {}
        self._times: list[tuple[str, int, float]] = []
        self.progress = ProgressFile(folder)

    @staticmethod
    def open(where: str | Path, study: Mapping[str, Any], *, resume: bool, recompute: bool = False) -> RunStore:
        """Starts a run in a new or empty directory, or resumes the run of the same study in it.

        A run computed by other code, calibration, data or versions is refused, or with `recompute` discarded.
        """
        folder = _folder(str(where))
        require_package("pyarrow", folder.where, "to save a run")
        asked = cast("dict[str, Any]", json.loads(to_json(study)))
        provenance = package_provenance(STUDY_PACKAGES)
        # before locking too: we must not write among a user's files
        records.recomputed_because(folder, asked, provenance, resume=resume, recompute=recompute)
        folder.claim()
        try:
            reason = records.recomputed_because(folder, asked, provenance, resume=resume, recompute=recompute)
            if reason:
                records.discard(folder)
            if reason is None or reason:
                folder.put(STUDY, to_json({"schema": SCHEMA_VERSION, "provenance": provenance, "study": asked}))
            folder.prepare(PARTS)
            folder.prepare(INDEX)
            if folder.get(STOPPED) is not None:
                folder.remove(STOPPED)
        except BaseException:
            folder.close()
            raise
        store = RunStore(str(where), folder, asked, writes=True)
        store.repairs += [f"{folder.where}: everything is recomputed because it {reason}."] if reason else []
        return store

    @staticmethod
    def view(where: str | Path) -> RunStore:
        """A run to read, which another process may be writing."""
        folder = _folder(str(where))
        study = records.study_of(folder) if folder.sizes() is not None else None
        if study is None:
            raise InputError(folder.where, "has no run", "name the directory of a study's run")
        return RunStore(str(where), folder, study, writes=False)

    @staticmethod
    def attach(where: str | Path, name: str, document: Mapping[str, Any]) -> None:
        """Saves a document beside a run that nobody writes."""
        folder = _folder(str(where))
        folder.claim()
        try:
            folder.put(name, to_json(document))
        finally:
            folder.close()

    def attached(self, name: str) -> dict[str, Any] | None:
        """A document that was saved beside the run; None if there is none, or it is damaged."""
        try:
            return records.fields(self._folder.get(name) or b"")
        except DamagedError:
            return None

    @property
    def path(self) -> Path | None:
        """The directory, if it is on this machine."""
        return self._folder.path

    def close(self) -> None:
        """Lets other processes write; the end of the process does so too."""
        self._folder.close()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def levels(self) -> tuple[str, ...]:
        """The fidelity levels that have finished batches."""
        return tuple(sorted(level for level, numbers in self._entries().items() if numbers))

    def numbers(self, level: str) -> frozenset[int]:
        """The finished batches of a level, from the index."""
        return frozenset(self._entries().get(level, ()))

    def read(self, level: str, number: int) -> Part | None:
        """The result of a finished batch; None if it is not finished, or damaged (then `repairs` says so).

        Who only reads gets an error about a damaged one.
        """
        checked = self._checked(level, number)
        if checked is None:
            return None
        table, facts = checked
        return Part(level, number, columns_of(table), facts)

    def write(self, part: Part) -> None:
        """Saves the result of a batch: its part first, then the index entry that makes it count."""
        assert self._writes, "this run is open for reading only"
        stem = records.stem_of(part.level, part.number)
        content = _content(part)
        rows = len(next(iter(part.columns.values())))
        digest = hashlib.sha256(content).hexdigest()
        entry = {"rows": rows, "bytes": len(content), "sha256": digest, "facts": dict(part.facts)}
        self._folder.put(f"{PARTS}/{stem}.parquet", content)
        self._folder.put(f"{INDEX}/{stem}.json", to_json(entry))
        self._entries().setdefault(part.level, set()).add(part.number)
        self._digests[stem] = digest

    def note_time(self, level: str, number: int, seconds: float) -> None:
        """Records how long a batch took; saved in its own file, since it differs between runs."""
        self._times.append((level, number, seconds))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Saves the result of the study; the run is then finished."""
        assert self._writes, "this run is open for reading only"
        times = [{"level": level, "number": number, "seconds": seconds} for level, number, seconds in self._times]
        self.progress.write()
        self._folder.put(TIMING, to_json({"schema": SCHEMA_VERSION, "batches": times}))
        digest = hashlib.sha256(to_json(result)).hexdigest()
        for level, number in self._finished():
            if records.stem_of(level, number) not in self._digests:
                self._intact(level, number)
        about = {"schema": SCHEMA_VERSION, "parts": self._parts(self._digests), "sha256": digest}
        self._folder.put(RESULT, to_json({**about, "result": dict(result)}))

    def pause(self, result: Mapping[str, Any], stopped: str) -> None:
        """Saves the result so far of a study that ends early; the run goes on when it is opened again."""
        assert self._writes, "this run is open for reading only"
        self.progress.write()
        self._folder.put(STOPPED, to_json({"schema": SCHEMA_VERSION, "stopped": stopped, "result": dict(result)}))

    def paused(self) -> tuple[dict[str, Any], str] | None:
        """The result so far of a run that was stopped, and what stopped it."""
        try:
            document = records.fields(self._folder.get(STOPPED) or b"", stopped=str, result=dict)
        except DamagedError:
            return None
        return document["result"], document["stopped"]

    def result(self) -> dict[str, Any] | None:
        """The result of a finished study; None if it is not finished, or damaged (then `repairs` says so).

        All its parts are read: one that is damaged makes the study unfinished. Who only reads gets an error.
        """
        if (content := self._folder.get(RESULT)) is None:
            return None
        try:
            document = records.fields(content, schema=int, parts=dict, sha256=str, result=dict)
            result = cast("dict[str, Any]", document["result"])
            if hashlib.sha256(to_json(result)).hexdigest() != document["sha256"]:
                raise DamagedError("was changed")
            # those of runs before digests were recorded say only how many there are
            if not document["parts"].items() <= self._parts(self.check()).items():
                raise DamagedError("is of parts that were damaged or lost")
        except DamagedError as damage:
            self._note(RESULT, damage, f"{RESULT} is rebuilt because it {damage}")
            return None
        return result

    def check(self) -> Mapping[str, str]:
        """The digests of all finished parts, each read and checked against its index entry."""
        for level, number in self._finished():
            self._intact(level, number)
        return self._digests

    def table(self, level: str) -> Table:
        """All finished and undamaged parts of a level, in the order of their numbers."""
        require_package("pyarrow", self.where, _READS)
        checked = (self._checked(level, number) for number in sorted(self.numbers(level)))
        return joined(rows[0] for rows in checked if rows is not None)

    def _entries(self) -> dict[str, set[int]]:
        """The numbers of finished batches by level: listed once, since nobody else writes."""
        if self._index is None:
            self._index = records.finished_batches(self._folder)
        return self._index

    def _finished(self) -> list[tuple[str, int]]:
        return [(level, number) for level in self.levels() for number in sorted(self.numbers(level))]

    def _parts(self, digests: Mapping[str, str]) -> dict[str, Any]:
        """What a result says about the parts it is of."""
        sizes = [size for name, size in (self._folder.sizes(PARTS) or {}).items() if name.endswith(".parquet")]
        whole = hashlib.sha256(to_json(dict(sorted(digests.items())))).hexdigest()
        return {"files": len(sizes), "bytes": sum(sizes), "sha256": whole}

    def _checked(self, level: str, number: int) -> tuple[Table, dict[str, Any]] | None:
        """The rows and facts of a finished batch; None if it is not finished, or damaged."""
        require_package("pyarrow", self.where, _READS)
        intact = self._intact(level, number)
        if intact is None:
            return None
        try:
            return _rows(*intact, level, number)
        except DamagedError as damage:
            self._give_up(level, number, damage)
            return None

    def _intact(self, level: str, number: int) -> tuple[bytes, dict[str, Any]] | None:
        """The part and index entry of a finished batch, checked by digest; None if it is not finished, or damaged."""
        if number not in self._entries().get(level, ()):
            return None
        stem = records.stem_of(level, number)
        try:
            entry = records.checked_entry(self._folder.get(f"{INDEX}/{stem}.json"))
            content = records.checked_content(self._folder.get(f"{PARTS}/{stem}.parquet"), entry)
        except DamagedError as damage:
            self._give_up(level, number, damage)
            return None
        self._digests[stem] = entry["sha256"]
        return content, entry

    def _give_up(self, level: str, number: int, damage: DamagedError) -> None:
        """A damaged batch no longer counts as finished."""
        stem = records.stem_of(level, number)
        index, part = f"{INDEX}/{stem}.json", f"{PARTS}/{stem}.parquet"
        file = index if str(damage).startswith("index") else part
        self._note(file, damage, f"batch {number} of level {level} is run again because its {damage} ({file})")
        self._entries()[level].discard(number)
        self._digests.pop(stem, None)
        # top-down: a run with a result counts as finished, and so does a batch with an entry
        for name in (RESULT, index, part):
            self._folder.remove(name)

    def _note(self, file: str, damage: DamagedError, repair: str) -> None:
        """Says how a damaged file is repaired; who only reads cannot repair it."""
        if not self._writes:
            fix = "run its study with --resume, which computes again what is damaged"
            raise InputError(f"{self._folder.where}: {file}", f"is damaged ({damage})", fix)
        self.repairs.append(f"{self._folder.where}: {repair}.")


def _content(part: Part) -> bytes:
    """The Parquet file of a part."""
    # the facts are in the index too; here the digest protects them
    facts = to_json(part.facts).decode()
    about = {"schema": str(SCHEMA_VERSION), "level": part.level, "number": str(part.number), "facts": facts}
    return parquet_bytes(part.columns, about)


def _rows(content: bytes, entry: dict[str, Any], level: str, number: int) -> tuple[Table, dict[str, Any]]:
    """The rows of a part, checked against its index entry."""
    table, about = parquet_table(content, "level", "number", "facts")
    if table.num_rows != entry["rows"] or about != [level, str(number), to_json(entry["facts"]).decode()]:
        raise DamagedError("index entry does not match its part")
    return table, entry["facts"]


def _folder(where: str) -> Folder:
    return folder_at(where) if "://" in where else LocalFolder(Path(where), where)
