"""Tasks on a Ray cluster, or on a private Ray on this machine: the only module that uses Ray."""
# Ray is optional and its types are partly unknown
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.errors import InputError, quoted
from dovetail.exploration.executor import Work
from dovetail.frozen import frozen

#: Tasks submitted beyond two per worker, so that a single worker does not wait for the driver either.
SPARE = 2
#: A task lost this often fails: most likely it is what kills its workers.
MOST_LOSSES = 10
#: Seconds before a lost task is resubmitted: doubled at each loss, so that a dying node is gone before the last.
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 10.0
#: Shortest time between two reads of the number of workers.
WORKERS_PERIOD_S = 1.0
#: How long a cluster may take to accept a connection.
ANSWER_S = 5.0
#: Tasks in flight for each finished one that we wait for at a time.
MANY_IN_FLIGHT = 256
#: Tasks and results are small; Ray would reserve 30 % of the memory.
OBJECT_STORE_BYTES = 256 * 2**20
#: Paths of Ray's sockets are some 65 characters longer than this directory's, and at most 107 are allowed.
LONGEST_DIRECTORY = 40

#: A worker uses one thread: Ray assigns the cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
#: No usage statistics; accelerators, which no task uses, are left alone (Ray warns otherwise); and Ray does not print
#: messages about dead workers to our output. Read when Ray is imported.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
#: Despite its name, this switch makes Ray listen on the loopback address only; read once, when Ray is imported.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@frozen
class _Raised:
    """What the work raised, in parts: an exception whose __init__ takes other arguments cannot be pickled."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    attributes: dict[str, Any]
    trace: str

    def rebuilt(self) -> BaseException:
        """The exception, with the worker's traceback as a note."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        error.__dict__.update(self.attributes)
        error.add_note(f"In the worker:\n{self.trace}")
        return error


@dataclass(slots=True)
class _SubmittedTask:
    """A pending task and how often it was lost."""

    task: Any
    losses: int = 0


class RayExecutor:
    """Runs tasks as stateless Ray tasks of one core each; tasks lost with a worker or node run again."""

    def __init__(self, work: Work, address: str, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise InputError("workers", f"is {workers}", "it should be 1 or more")
        self._private = address == "local"
        self._ray = _imported(address)
        #: the directory of a private Ray's logs and sockets
        self._directory: str | None = None
        #: whether we started Ray and must shut it down
        self._ours = self._private or not self._ray.is_initialized()
        if self._private:
            self._start(workers or os.cpu_count() or 1)
        elif self._ours:
            _join(self._ray, address)
        # Ray exports the function once, and a worker unpacks it once, with the work in it. Ray's own retries are off:
        # they would never end if the task itself kills its worker.
        options = {} if self._ours else {"runtime_env": {"env_vars": ONE_THREAD}}
        self._remote = self._ray.remote(num_cpus=1, max_retries=0, **options)(_attempt_of(work))
        self._asked = workers
        self._seen, self._seen_at_s = 0, float("-inf")
        self._under_way: dict[int, _SubmittedTask] = {}
        self._numbers: dict[Any, int] = {}
        #: (when, number) of lost tasks to resubmit
        self._lost: list[tuple[float, int]] = []
        self._done: deque[tuple[int, Any]] = deque()
        self._closed = False

    @property
    def workers(self) -> int:
        """Cores the cluster has now, at most as many as requested; 1 while it has none yet."""
        now_s = time.monotonic()
        if now_s - self._seen_at_s >= WORKERS_PERIOD_S:
            self._seen = int(self._ray.cluster_resources().get("CPU", 0))
            self._seen_at_s = now_s
        return max(1, self._seen if self._asked is None else min(self._asked, self._seen))

    @property
    def in_flight(self) -> int:
        """Enough that workers never wait for the driver; no more than requested if the cluster has more."""
        workers = self.workers
        return workers if workers < self._seen else 2 * workers + SPARE

    def submit(self, number: int, task: Any) -> None:
        """Submits a task to Ray."""
        assert number not in self._under_way, f"task {number} is already pending"
        self._under_way[number] = _SubmittedTask(task)
        self._send(number)

    def take(self) -> tuple[int, Any]:
        """Waits for a task to finish; resubmits lost tasks meanwhile."""
        assert self._under_way, "no task is pending"
        while not self._done:
            self._resubmit_lost()
            self._collect()
        number, value = self._done.popleft()
        del self._under_way[number]
        if isinstance(value, BaseException):
            raise value
        return number, value

    def close(self) -> None:
        """Cancels pending tasks; stops a private Ray, or leaves the cluster."""
        if self._closed:
            return
        self._closed = True
        if not self._private:
            for ref in self._numbers:
                self._ray.cancel(ref, force=True)
        self._numbers.clear()
        if self._ours:
            self._ray.shutdown()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, workers: int) -> None:
        """Starts a private Ray on this machine; its workers inherit the environment."""
        directory = tempfile.mkdtemp(prefix="dovetail-")
        if len(directory) > LONGEST_DIRECTORY:
            os.rmdir(directory)
        else:
            self._directory = directory
        # A private Ray has its own token: otherwise Ray would write one to the home directory, which clusters started
        # later would require. It stays for this process, since Ray reads it once.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with _environment(ONE_THREAD):
            _connect(
                self._ray,
                "local",
                num_cpus=workers,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=self._directory,
            )

    def _send(self, number: int) -> None:
        self._numbers[self._remote.remote(self._under_way[number].task)] = number

    def _resubmit_lost(self) -> None:
        now_s = time.monotonic()
        due = [number for at_s, number in self._lost if at_s <= now_s]
        self._lost = [entry for entry in self._lost if entry[0] > now_s]
        for number in due:
            self._send(number)

    def _collect(self) -> None:
        """Waits until a task finishes or a lost one is due, and handles its result or loss."""
        patience_s = None if not self._lost else max(0.0, min(self._lost)[0] - time.monotonic())
        refs = list(self._numbers)
        if not refs:
            time.sleep(patience_s or 0.0)
            return
        # measured (benchmarks/scale_out.py): fetching one result at a time is cheaper for the driver than all at once.
        # A wait takes as long as there are tasks in flight, so of many we wait for a few; each worker has a next task.
        ready, _ = self._ray.wait(refs, num_returns=max(1, len(refs) // MANY_IN_FLIGHT), timeout=patience_s)
        for ref in ready:
            value = self._value(ref)
            number = self._numbers.pop(ref)
            if isinstance(value, self._ray.exceptions.RayError):
                self._lose(number, value)
            else:
                self._done.append((number, value.rebuilt() if isinstance(value, _Raised) else value))

    def _value(self, ref: Any) -> Any:
        """The result of a finished task, or the reason there is none."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            # not the work, whose errors the worker catches: a package is missing there, or a result cannot be pickled
            return error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
        except self._ray.exceptions.RayError as error:
            return error

    def _lose(self, number: int, reason: Exception) -> None:
        task = self._under_way[number]
        task.losses += 1
        if task.losses >= MOST_LOSSES:
            what = f"the worker of batch {number} died {task.losses} times, last with {type(reason).__name__}"
            fix = "most often its memory is too small: use fewer workers on each machine"
            error = InputError("Ray", what, fix)
            error.add_note(str(reason))
            self._done.append((number, error))
            return
        delay_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (task.losses - 1))
        self._lost.append((time.monotonic() + delay_s, number))


def _attempt_of(work: Work) -> Work:
    """The work as a function that returns its exceptions: Ray must not mistake a bug for a lost worker."""

    def attempt(task: Any) -> Any:
        try:
            return work(task)
        except Exception as error:
            return _sendable(error)

    return attempt


def _sendable(error: Exception) -> _Raised:
    from ray import cloudpickle

    trace = "".join(traceback.format_exception(error))
    raised = _Raised(type(error), error.args, {k: v for k, v in vars(error).items() if k != "__notes__"}, trace)
    try:
        cloudpickle.loads(cloudpickle.dumps(raised)).rebuilt()
    except Exception:
        return _Raised(RuntimeError, (f"{type(error).__name__}: {error}",), {}, trace)
    return raised


def _imported(address: str) -> Any:
    """Imports Ray, or raises an error that says how to install it."""
    install = 'install it with `pip install "dovetail[cluster]"`'
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    with _environment(LOOPBACK if address == "local" else {}):
        try:
            import ray
        except ModuleNotFoundError as error:
            raise InputError("executor", "the package ray is not installed", install) from error
    if address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
        raise InputError("executor", "the package grpcio, which ray:// needs, is not installed", install)
    return ray


def _join(ray: Any, address: str) -> None:
    """Connects to a cluster; Ray itself would try a dead address for more than a minute."""
    place = address
    if address == "auto":
        place = os.environ.get("RAY_ADDRESS") or address
    if place != "auto":
        host, colon, port = place.removeprefix("ray://").rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 2**16) or "/" in host:
            fix = "it should be auto, local, ray://host:port or host:port"
            raise InputError("address", f"is {quoted(place)}", fix)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
        except OSError as error:
            raise _no_answer(place) from error
    _connect(ray, address, runtime_env={"env_vars": ONE_THREAD})


def _connect(ray: Any, address: str, **options: Any) -> None:
    if not address.startswith("ray://"):
        options["log_to_driver"] = False
    try:
        # everything that matters is raised as an exception
        with warnings.catch_warnings(action="ignore"):
            ray.init(address=address, logging_level=logging.CRITICAL, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reasons = " ".join(_reasons(error))
        if "AuthToken" in reasons or "AuthenticationError" in reasons:
            fix = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token it was started with"
            raise InputError("address", f"the Ray cluster at {quoted(address)} asks for a token", fix) from error
        if isinstance(error, ConnectionError):
            raise _no_answer(address) from error
        what = f"Ray at {quoted(address)} refuses: {(reasons.splitlines() or [type(error).__name__])[0]}"
        raise InputError("address", what, "use another address, or restart Ray there") from error


def _reasons(error: BaseException | None) -> Iterator[str]:
    """The messages of an exception and its causes."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def _no_answer(address: str) -> InputError:
    if address == "auto":
        what, fix = "no Ray cluster runs on this machine", "start one with `ray start --head`, or use local"
    else:
        what = f"no Ray cluster answers at {quoted(address)}"
        fix = "it should be the address of one that runs, as ray://host:10001 or host:6379, and its token be known"
    return InputError("address", what, fix)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Generator[None]:
    """Sets environment variables inside the block: child processes inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
