"""The directory of a run on a local disk: atomic files, one writer, readable errors."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from dovetail.errors import InputError

LOCK = ".lock"
#: A file being written; with one writer, one name per directory is enough and needs no listing.
PARTIAL = ".partial"
#: What a run leaves behind if it is killed before its first file exists.
LEFTOVERS = frozenset({LOCK, PARTIAL})

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Folder(Protocol):
    """Where the files of a run are: on a local disk or in any other file system; names are relative to it."""

    #: as shown in messages
    where: str
    #: None if it is not on this machine's disks
    path: Path | None

    def sizes(self, inner: str = "") -> dict[str, int] | None:
        """Names and sizes of its files, or those of a directory in it; None if that does not exist."""
        ...

    def claim(self) -> None:
        """Creates it if needed, and locks it for this process."""
        ...

    def prepare(self, inner: str) -> None:
        """Creates a directory in it, and removes what a killed writer left there."""
        ...

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        ...

    def put(self, name: str, content: bytes) -> None:
        """Writes a file atomically: if the process is killed, the old or the new content is there."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file if it exists."""
        ...

    def close(self) -> None:
        """Lets other processes write."""
        ...


def not_written(where: str, name: str, error: BaseException) -> InputError:
    """The error for a file of a run that could not be written; the run stays as it was."""
    at = f"{where}: {name}" if name else where
    code = getattr(error, "errno", None)
    if code in _DISK_FULL:
        return InputError(at, "cannot be written (the disk is full)", "free some space and run again with --resume")
    if code == errno.EFBIG:
        what = "cannot be written (the limit on the size of a file is reached)"
        return InputError(at, what, "raise it (`ulimit -f unlimited`) and run again with --resume")
    what = f"cannot be written ({_reason(error)})"
    if code in _NOT_ALLOWED:
        return InputError(at, what, "allow writing there or name another directory, then run again with --resume")
    return InputError(at, what, "fix that or name another directory, then run again with --resume")


def not_read(where: str, name: str, error: BaseException) -> InputError:
    """The error for a file that could not be read; it may be intact, so nothing of the run is dropped."""
    at = f"{where}: {name}" if name else where
    return InputError(at, f"cannot be read ({_reason(error)})", "fix that and try again")


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)[:200] or type(error).__name__


class LocalFolder:
    """A directory on a local or mounted disk."""

    def __init__(self, path: Path, where: str) -> None:
        self.path: Path | None = path
        self.where = where
        self._root = path
        self._unlock: weakref.finalize[[int], LocalFolder] | None = None

    def sizes(self, inner: str = "") -> dict[str, int] | None:
        """Names and sizes of its files, or those of a directory in it; None if that does not exist."""
        try:
            with os.scandir(self._root / inner) as entries:
                return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise InputError(self.where, "is a file or inside one", "name a directory") from None
        except (OSError, ValueError) as error:
            raise not_read(self.where, inner, error) from None

    def claim(self) -> None:
        """Creates it if needed, and locks it for this process."""
        try:
            self._root.mkdir(exist_ok=True)
            # open for writing: a lock over NFS needs that
            lock = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            fix = "name a directory in one that exists"
            raise InputError(self.where, "cannot be made, for the directory above it does not exist", fix) from None
        except OSError as error:
            raise not_written(self.where, "", error) from None
        # The kernel frees the lock when the process ends, however it ends; a lock file that stays locks nothing.
        self._unlock = weakref.finalize(self, os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            fix = "wait until it has ended, or name another directory"
            raise InputError(self.where, "another process is writing this run", fix) from None
        except OSError:
            pass  # some mounted file systems have no locks; we can still run there
        self.prepare("")

    def prepare(self, inner: str) -> None:
        """Creates a directory in it, and removes what a killed writer left there."""
        try:
            (self._root / inner).mkdir(exist_ok=True)
            (self._root / inner / PARTIAL).unlink(missing_ok=True)
        except OSError as error:
            raise not_written(self.where, inner, error) from None

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise not_read(self.where, name, error) from None

    def put(self, name: str, content: bytes) -> None:
        """Writes a file atomically: if the process is killed, the old or the new content is there."""
        assert self._unlock is not None, "only the process that claimed a folder writes to it"
        target = self._root / name
        partial = target.parent / PARTIAL
        try:
            with partial.open("wb", buffering=0) as file:
                rest = memoryview(content)
                while rest:  # a write may take less than it was given
                    rest = rest[file.write(rest) :]
                # The directory is not synced too: a power failure may lose the newest files, never tear one.
                os.fsync(file.fileno())
            os.replace(partial, target)
        except OSError as error:
            with suppress(OSError):  # half a file may use the space that is missing
                partial.unlink()
            raise not_written(self.where, name, error) from None

    def remove(self, name: str) -> None:
        """Removes a file if it exists."""
        assert self._unlock is not None, "only the process that claimed a folder writes to it"
        try:
            (self._root / name).unlink(missing_ok=True)
        except OSError as error:
            raise not_written(self.where, name, error) from None

    def close(self) -> None:
        """Lets other processes write."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
