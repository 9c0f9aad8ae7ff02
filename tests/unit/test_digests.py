"""Digests of what computes answers: each part of the package changes its own; where it is installed changes none."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dovetail as dt
from dovetail import digests
from dovetail.digests import digest, package_digests, package_provenance, package_versions
from dovetail.hardware import Chip
from dovetail.hardware.catalogue import chip_names, cluster_names, wafer_names
from dovetail.hardware.chip import ChipCalibration
from dovetail.plans.provenance import provenance_fields, question_digests
from timing import least_cpu_seconds

PACKAGE = Path(digests.__file__).parent
HEX = re.compile(r"[0-9a-f]{16}")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the package whose digests are asked for."""
    shutil.copytree(PACKAGE, tmp_path / "dovetail", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(digests, "_root", lambda: tmp_path / "dovetail")
    return tmp_path / "dovetail"


def now() -> dict[str, str]:
    """The digests as a new process would compute them."""
    return dict(package_digests.__wrapped__())


def test_digests_are_short_and_the_same_each_time():
    found = package_digests()
    assert set(found) == {"code", "calibration", "data", "versions"}
    assert all(HEX.fullmatch(text) for text in found.values())
    assert len(set(found.values())) == 4
    assert now() == found
    script = "from dovetail.digests import package_digests; print(dict(package_digests()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(dict(found))


def test_a_process_pays_little_for_them():
    assert least_cpu_seconds(now, 0.1) < 0.1  # measured: 0.027
    assert package_digests() is package_digests()


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("step/formulas.py", "code"),
        ("__init__.py", "code"),
        ("cost/data/calibration.yaml", "calibration"),
        ("models/data/gpt2-1.5b.yaml", "data"),
        ("hardware/data/chips/h100-sxm.yaml", "data"),
        ("frameworks/data/megatron.yaml", "data"),
        ("accuracy/data/published_runs.csv", "data"),
    ],
)
def test_one_byte_of_a_file_changes_the_digest_of_its_kind_alone(copied, file, kind):
    assert now() == package_digests()
    content = bytearray((copied / file).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / file).write_bytes(content)
    assert [name for name, text in now().items() if text != package_digests()[name]] == [kind]


def test_names_of_files_count_and_leftovers_do_not(copied):
    (copied / "__pycache__").mkdir()
    (copied / "__pycache__" / "api.cpython-311.pyc").write_bytes(b"compiled")
    (copied / ".#api.py").symlink_to("nowhere")
    assert now() == package_digests()
    (copied / "models" / "data" / "gpt2-1.5b.yaml").rename(copied / "models" / "data" / "other.yaml")
    assert now()["data"] != package_digests()["data"]
    (copied / "added.py").touch()
    assert now()["code"] != package_digests()["code"]


def test_a_package_in_an_archive_has_the_same_digests(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as archive:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(PACKAGE.parent))
    monkeypatch.setattr(digests, "_root", lambda: zipfile.Path(tmp_path / "wheel.zip", "dovetail/"))
    assert now() == package_digests()


def test_another_version_of_a_package_changes_the_digest_of_versions(monkeypatch):
    real = digests._version
    monkeypatch.setattr(digests, "_version", lambda name: "1.2.3" if name == "numpy" else real(name))
    found = package_versions.__wrapped__()
    assert {name: text for name, text in found.items() if text != package_versions()[name]} == {"numpy": "1.2.3"}
    assert package_versions()["numpy"] == np.__version__
    assert digest(found) != package_digests()["versions"] == digest(package_versions())


def test_a_digest_is_of_content():
    assert digest({"a": 1, "b": (2, np.array([0.1]))}) == digest({"b": [2, [0.1]], "a": 1})
    assert digest(np.array([1.0])) != digest(np.array([1.0 + 1e-15]))
    assert digest({"a": None}) != digest({})
    with pytest.raises(TypeError, match="object has no digest"):
        digest(object())


def test_the_whole_catalogue_has_digests_of_its_own():
    clusters = [dt.hardware.cluster(name, 8) for name in chip_names()]
    clusters += [dt.hardware.cluster(name) for name in (*cluster_names(), *wafer_names())]
    models = [dt.models.load(name) for name in dt.models.names()]
    frameworks = [dt.frameworks.load(name) for name in dt.frameworks.names()]
    things: list[object] = [*clusters, *models, *frameworks]
    assert len({digest(thing) for thing in things}) == len(things)


def changed_digests(model: str = "gpt2-1.5b", chip: Chip | None = None, chips: int = 8, framework: str = "megatron"):
    """Which digests differ from those of one question."""

    def asked(model: str, chip: Chip, chips: int, framework: str) -> dict[str, str]:
        job = dt.Job(dt.models.load(model), seq_len=1024, global_batch=64)
        return question_digests(job, dt.hardware.cluster(chip, chips), dt.frameworks.load(framework))

    usual = dt.hardware.chip("h100-sxm")
    first, second = asked("gpt2-1.5b", usual, 8, "megatron"), asked(model, chip or usual, chips, framework)
    return {name for name in first if first[name] != second[name]}


def test_each_part_of_a_question_has_its_digest():
    chip = dt.hardware.chip("h100-sxm")
    package_digests.cache_clear()
    assert changed_digests() == set()
    assert not package_digests.cache_info().currsize, "which are those of all files"
    assert changed_digests(model="gpt3-1.3b") == {"model"}
    assert changed_digests(framework="torchtitan") == {"framework"}
    assert changed_digests(chips=16) == {"cluster"}
    assert changed_digests(chip=replace(chip, hbm_bytes=chip.hbm_bytes + 1)) == {"chip", "cluster"}
    own = replace(chip, calibration=ChipCalibration((("memory", 0.8),), "mine"))
    assert changed_digests(chip=own) == {"chip", "cluster", "calibration"}


def test_the_provenance_of_a_question_has_all_of_them():
    job = dt.Job(dt.models.load("gpt2-1.5b"), seq_len=1024, global_batch=64)
    found = provenance_fields(job, dt.hardware.cluster("h100-sxm", 8), dt.frameworks.load("megatron"))
    assert found["digests"].keys() == {*package_digests(), "framework", "model", "chip", "cluster"}
    assert found | {"digests": dict(package_digests())} == package_provenance()
    assert found["digests"].items() >= package_digests().items()
