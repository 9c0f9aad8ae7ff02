"""Kernels: compiled or not, they answer alike, and what is compiled is stored wherever that is possible."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

import dovetail as dt
from dovetail.arrays import Floats, Ints
from dovetail.cli.compiling_line import show_compiling
from dovetail.compilation import Compiling, compiled, kernel, watch
from dovetail.compilation.cache import content_digest, private_directory
from dovetail.compilation.text import KernelText
from dovetail.plans.plan_file import load_task

PUBLISHED = Path(__file__).parents[2] / "published"
SUM = """
from dovetail.compilation import compiled, compiling_s

@compiled
def _twice(x):
    return 2 * x

@compiled
def added(x, y):
    return _twice(x) + y

print(added(20, 2), compiling_s() > 0)
"""


class Inner(NamedTuple):
    factor: float
    numbers: Ints


class Table(NamedTuple):
    values: Floats
    inner: Inner


@compiled
def row_sum(table: Table, row: int) -> float:
    total = 0.0
    for column in range(table.values.shape[1]):
        total += table.values[row, column] * table.inner.numbers[column]
    return total * table.inner.factor


@compiled
def write_sums(table: Table, sums: Floats) -> Floats:
    for row in range(len(table.values)):
        sums[row] = row_sum(table, row)
        table.values[row, 0] = row
    return table.values


@compiled
def scaled(number: float, by: int) -> float:
    return number * by


@compiled
def scaled_sum(number: float, by: int) -> float:
    return scaled(number, 2) + scaled(number, 3) + scaled(number, by)


def test_an_inner_kernel_is_compiled_once_for_all_numbers_and_into_what_calls_it():
    from numba.core import types

    assert scaled_sum(0.5, 4) == 4.5
    assert isinstance(scaled, kernel.CompiledFunction)
    inner: Any = scaled.inner()
    for by in (types.literal(2), types.literal(3), types.int64):
        inner.get_call_template((types.float64, by), {})
    (code,) = [overload.library for overload in inner.overloads.values()]
    assert not any(code.get_pointer_to_function(function.name) for function in code.get_defined_functions())
    # called by itself, it is an entry
    assert scaled(0.5, 3) == 1.5


def table_of(numbers: Ints) -> Table:
    return Table(np.arange(12.0).reshape(4, 3), Inner(0.1, numbers))


def test_tuples_are_read_and_written_as_in_python():
    compiled_table, plain_table = table_of(np.array([1, 2, 3])), table_of(np.array([1, 2, 3]))
    compiled_sums, plain_sums = np.zeros((2, 4))
    assert isinstance(write_sums, kernel.CompiledFunction)
    values = write_sums(compiled_table, compiled_sums)
    write_sums.plain()(plain_table, plain_sums)
    np.testing.assert_array_equal(compiled_sums, plain_sums)
    np.testing.assert_array_equal(compiled_table.values, plain_table.values)
    assert values is compiled_table.values
    assert plain_sums.any()
    # another layout is another type
    strided = table_of(np.arange(6)[::2])
    assert row_sum(strided, 2) == row_sum.plain()(strided, 2)


def test_an_estimate_is_the_same_compiled_or_not(monkeypatch: pytest.MonkeyPatch):
    task = load_task(PUBLISHED / "korthikanti-175b-selective.yaml")
    plain: list[bool] = []

    def evaluated(is_plain: bool) -> object:
        monkeypatch.setattr(
            kernel.CompiledFunction, "runs_plain", lambda self, steps: plain.append(is_plain) or is_plain
        )
        return dt.evaluate(task.plan, task.job, task.cluster, task.framework)

    assert repr(evaluated(True)) == repr(evaluated(False))
    assert True in plain
    assert False in plain


def test_few_steps_are_taken_in_python(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel, "PLAIN_STEPS", 10)
    fresh = compiled(lambda x: x + 1)
    assert isinstance(fresh, kernel.CompiledFunction)
    assert kernel.worth_compiling(fresh, 6) is fresh.plain()
    assert kernel.worth_compiling(fresh, 5) is fresh
    assert kernel.worth_compiling(fresh, 4) is fresh.plain()
    assert kernel.worth_compiling(fresh, 1) is fresh


def run(path: Path, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", "NUMBA_CACHE_DIR")}
    kept = {name: value for name, value in kept.items() if not name.startswith("XDG_")}
    done = subprocess.run([sys.executable, path], env=kept | environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_where_nothing_but_the_temporary_directory_is_writable(tmp_path: Path):
    code, temporary = tmp_path / "code", tmp_path / "temporary"
    code.mkdir()
    temporary.mkdir()
    # files where directories would be made: not even root can write there
    (code / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    script = code / "sums.py"
    script.write_text(SUM)
    places = {"HOME": str(tmp_path / "home"), "TMPDIR": str(temporary)}
    assert run(script, **places) == ["42", "True"]
    assert run(script, **places) == ["42", "False"], "it was stored"
    (own,) = temporary.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert list(own.rglob("*.nbi"))
    # what it calls says something else now,
    script.write_text(SUM.replace("2 * x", "3 * x"))
    # and the place is open to others: it is not trusted, so nothing is read or stored
    stored = sorted(own.rglob("*"))
    own.chmod(0o777)
    assert run(script, **places) == ["62", "True"]
    assert sorted(own.rglob("*")) == stored


def test_what_is_stored_is_read_without_what_compiling_needs(tmp_path: Path):
    script = tmp_path / "sums.py"
    script.write_text(SUM)
    assert run(script) == ["42", "True"]
    # after it another one is compiled
    script.write_text(SUM + 'import sys\nprint("numba.np.npyimpl" in sys.modules, added(0.5, 1))\n')
    assert run(script) == ["42", "False", "False", "2.0"]


def test_a_private_directory_is_the_users_alone(tmp_path: Path):
    path = private_directory(tmp_path)
    assert path is not None
    assert private_directory(tmp_path) == path
    path.chmod(0o750)
    assert private_directory(tmp_path) is None
    path.rmdir()
    path.symlink_to(tmp_path)
    assert private_directory(tmp_path) is None
    path.unlink()
    path.write_text("")
    assert private_directory(tmp_path) is None
    assert private_directory(tmp_path / "nowhere") is None


def test_a_digest_knows_code_constants_and_options():
    spaces: list[dict[str, object]] = [{"SIZE": 1}, {"SIZE": 1}, {"SIZE": 2}]
    texts: list[KernelText] = []
    for space in spaces:
        exec("def f(x):\n    return x + SIZE", space)  # noqa: S102
        texts.append(KernelText(cast("Any", space["f"]), {}))
    first, same, other = (content_digest([text]) for text in texts)
    assert first == same != other
    assert content_digest([KernelText(cast("Any", texts[0].function), {"inline": "always"})]) != first


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_sees_what_is_compiled():
    from dovetail.compilation.progress import PROGRESS

    stream, log = Terminal(), io.StringIO()
    try:
        show_compiling(["plan"], log)
        show_compiling(["plan", "--json"], Terminal())
        assert PROGRESS.listener is None
        show_compiling(["plan"], stream)
        assert PROGRESS.listener is not None
        PROGRESS.listener(Compiling("evaluate_plans", 3, 25))
        PROGRESS.listener(Compiling("evaluate_plans", 25, 25))
    finally:
        watch(None)
    assert stream.getvalue() == ("\r\x1b[Kcompiling, once on this machine: evaluate_plans, 3 of 25 functions\r\x1b[K")
