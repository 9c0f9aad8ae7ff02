"""A run belongs to the code, calibration, data and versions that computed it: others refuse it, or recompute it."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_run import STUDY as SMALL
from small_run import files_of, finished, refused, run, undisturbed
from small_study import STUDY, explore, write
from small_study import files_of as study_files

from dovetail import digests
from dovetail.cli import main
from dovetail.digests import package_digests, package_versions
from dovetail.errors import InputError
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.folder import LocalFolder
from dovetail.exploration.store import RunStore
from dovetail.exploration.study import Study
from dovetail.exploration.tasks import WarmStarts

PACKAGE = Path(digests.__file__).parent
ONE_DESIGN = {
    **STUDY,
    "hardware": {"base": "h100-sxm", "vary": {"hbm_stacks": [5]}},
    "cluster": {"chips": [16], "framework": "megatron"},
    "objectives": ["step_time"],
}
FIX = "change it back, add --recompute to discard what was computed, or name another directory."
#: Computes with the package where it is, but with the calibration of a copy, as the copy itself would.
WITH_CALIBRATION_OF = """
import sys
from pathlib import Path
from dovetail import digests
from dovetail.cli import main
from dovetail.cost import calibration
copied = Path(sys.argv[1])
digests._root = lambda: copied
calibration.files = lambda package: copied / "cost"
main(sys.argv[2:])
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package, to change."""
    shutil.copytree(PACKAGE, tmp_path / "other" / "dovetail", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "other" / "dovetail"


@pytest.fixture
def other_numpy() -> Iterator[Any]:
    """Another version of numpy as far as this process can tell, until it is told to end."""
    patch = pytest.MonkeyPatch()
    real = digests._version

    def forget() -> None:
        package_digests.cache_clear()
        package_versions.cache_clear()

    def end() -> None:
        patch.undo()
        forget()

    patch.setattr(digests, "_version", lambda name: "1.99.0" if name == "numpy" else real(name))
    forget()
    yield end
    end()


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and error of a command."""
    with pytest.raises(SystemExit) as ended:
        main(["explore", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().err


def fresh(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The result and the files of a run that nothing was computed for before."""
    document = Study.load(folder / "study.yaml").run(folder / "fresh").document
    found = files_of(folder / "fresh")
    return dict(document), found


def check_refused_then_recomputed(folder: Path, says: str) -> None:
    """The run of a folder is refused with one sentence and left as it is; when asked for, it becomes a fresh run."""
    before = study_files(folder)
    study = Study.load(folder / "study.yaml")
    with pytest.raises(InputError) as caught:
        study.run(folder / "run", resume=True)
    sentence = str(caught.value)
    assert sentence.startswith(f"{folder / 'run'}: ")
    assert says in sentence
    assert sentence.endswith(FIX)
    assert study_files(folder) == before
    result = study.run(folder / "run", resume=True, recompute=True)
    assert result.repairs[0].startswith(f"{folder / 'run'}: everything is recomputed because it ")
    assert says in result.repairs[0]
    document, files = fresh(folder)
    assert result.document == document
    assert files_of(folder / "run") == files
    again = study.run(folder / "run", resume=True)
    assert (again.document, again.repairs) == (document, ())


def test_a_run_of_another_calibration_is_refused_or_recomputed(tmp_path, copied):
    write(tmp_path, ONE_DESIGN)
    calibration = copied / "cost" / "data" / "calibration.yaml"
    before, marker, figures = calibration.read_text(encoding="utf-8").partition("\n  hopper:\n    matrix:\n")
    assert marker
    changed = re.sub(r"value: 0\.\d+", "value: 0.123", figures, count=1)
    calibration.write_text(before + marker + changed, encoding="utf-8")
    script = [sys.executable, "-c", WITH_CALIBRATION_OF, str(copied), "explore", "study.yaml", "--out", "run", "--json"]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    before = json.loads(done.stdout)
    shutil.rmtree(tmp_path / "run" / "best")
    was, now = before["provenance"]["digests"]["calibration"], package_digests()["calibration"]
    check_refused_then_recomputed(tmp_path, f"was computed by something else (calibration {was} → {now})")
    after = json.loads((tmp_path / "run" / "result.json").read_text())["result"]
    assert before["best"]["objectives"]["step_time"] > after["best"]["objectives"]["step_time"]


def test_a_run_of_another_source_is_refused(tmp_path, copied):
    write(tmp_path, ONE_DESIGN)
    Study.load(tmp_path / "study.yaml").run(tmp_path / "run")
    same = explore(tmp_path, "--resume", PYTHONPATH=str(copied.parent))
    assert (same.code, same.err) == (0, ""), "where the package is installed does not matter"
    before = study_files(tmp_path)
    replaced(copied / "step" / "formulas.py", '"""', '"""Other ')
    ended = explore(tmp_path, "--resume", PYTHONPATH=str(copied.parent))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("run: was computed by something else (code " + package_digests()["code"] + " → ")
    assert ended.err.endswith(f"); {FIX}\n")
    assert ended.err.count("\n") == 1
    assert study_files(tmp_path) == before


def test_a_run_of_another_source_is_recomputed(tmp_path, copied):
    write(tmp_path, ONE_DESIGN)
    replaced(copied / "step" / "formulas.py", '"""', '"""Other ')
    patch = pytest.MonkeyPatch()
    patch.setattr(digests, "_root", lambda: copied)
    package_digests.cache_clear()
    Study.load(tmp_path / "study.yaml").run(tmp_path / "run")
    patch.undo()
    package_digests.cache_clear()
    check_refused_then_recomputed(tmp_path, f" → {package_digests()['code']})")


def test_a_run_of_another_numpy_is_refused_or_recomputed(tmp_path, other_numpy):
    write(tmp_path, ONE_DESIGN)
    Study.load(tmp_path / "study.yaml").run(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()  # interrupted before its end
    other_numpy()
    now = package_versions()["numpy"]
    check_refused_then_recomputed(tmp_path, f"was computed by something else (numpy 1.99.0 → {now})")


def test_a_run_that_does_not_say_what_computed_it_is_refused_or_recomputed(tmp_path):
    write(tmp_path, ONE_DESIGN)
    Study.load(tmp_path / "study.yaml").run(tmp_path / "run")
    file = tmp_path / "run" / "study.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({"schema": 1, "study": {**document["study"], "version": "0.1.0"}}))
    check_refused_then_recomputed(tmp_path, "does not say which code, calibration, data and versions computed it")


def test_the_command_says_so_and_has_the_option(tmp_path, monkeypatch, capsys, other_numpy):
    write(tmp_path, ONE_DESIGN)
    monkeypatch.chdir(tmp_path)
    ask = partial(shown, capsys, "study.yaml", "--out", "run", "--json")
    assert ask()[0] == 0
    (tmp_path / "run" / "best" / "old.yaml").write_text("of another plan")
    other_numpy()
    code, err = ask("--resume")
    assert (code, err.startswith("run: was computed by something else (numpy 1.99.0 → ")) == (2, True)
    assert ask("--recompute") == (2, "--recompute: is about a run to resume; add --resume.\n")
    code, err = ask("--resume", "--recompute")
    assert code == 0
    assert "everything is recomputed because it was computed by something else (numpy" in err
    assert [path.name for path in (tmp_path / "run" / "best").iterdir()] == ["gpt2-1.5b.yaml"]


def test_another_study_is_not_recomputed(tmp_path, other_numpy):
    finished(tmp_path / "run")
    other_numpy()
    with pytest.raises(InputError, match=r"name: is 'b', but .* change it back, or name another directory\.$"):
        RunStore.open(tmp_path / "run", {**SMALL, "name": "b"}, resume=True, recompute=True)


def test_nothing_is_recomputed_without_reason(tmp_path, monkeypatch):
    finished(tmp_path / "run")
    monkeypatch.setattr(LocalFolder, "remove", lambda *_: pytest.fail("something is discarded"))
    with RunStore.open(tmp_path / "run", SMALL, resume=True, recompute=True) as store:
        assert store.result() is not None
        assert store.repairs == []


def test_a_discard_that_is_interrupted_leaves_nothing_to_go_on_with(tmp_path, monkeypatch, other_numpy):
    finished(tmp_path / "other")
    other_numpy()
    remove = LocalFolder.remove
    removed = 0

    def interrupted(folder: LocalFolder, name: str, most: int) -> None:
        nonlocal removed
        removed += 1
        if removed > most:
            raise KeyboardInterrupt
        remove(folder, name)

    for most in (0, 1, 5, 15):
        where = tmp_path / str(most)
        shutil.copytree(tmp_path / "other", where)
        removed = 0
        with monkeypatch.context() as patch:
            patch.setattr(LocalFolder, "remove", lambda folder, name, most=most: interrupted(folder, name, most))
            with pytest.raises(KeyboardInterrupt):
                RunStore.open(where, SMALL, resume=True, recompute=True)
        assert "numpy 1.99.0 → " in refused(where)
        RunStore.open(where, SMALL, resume=True, recompute=True).close()
        run(where).close()
        assert files_of(where) == undisturbed()


def test_a_worker_with_another_package_is_refused(tmp_path, other_numpy):
    write(tmp_path, ONE_DESIGN)
    worker = copy.copy(Worker(Study.load(tmp_path / "study.yaml")))
    was = package_digests()["versions"]
    other_numpy()
    with pytest.raises(InputError, match=rf"worker: would compute with something else \(versions {was} → "):
        worker(WarmStarts(0))
