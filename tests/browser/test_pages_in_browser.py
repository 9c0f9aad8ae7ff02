"""Reports and the served page in Chromium: drawn, no console error, nothing fetched, no serious axe violation."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.report.page.document import to_html
from dovetail.report.page.subjects import page_of, page_of_answer
from dovetail.serve.server import Server

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "check_pages.cjs"
#: Milliseconds from the address to the first picture.
SOON = 2000
PLAN = "job: {model: llama-3.1-8b, seq_len: 8192, global_batch: 64}\ncluster: {chip: h100-sxm, chips: 16}\n"
PLAN += "plan: {pipeline_parallel: 4, virtual_stages: 4, zero_stage: 1}\n"
WAFER = "job: {model: gpt3-1.3b, seq_len: 2048, global_batch: 56}\ncluster: {name: watos-buildable, framework: ideal}\n"
WAFER += "plan: {tensor_parallel: 8, zero_stage: 1}\n"
FRONT = ("--model", "llama-3.1-8b", "--chip", "h100-sxm", "--chips", "8..64", "--seq-len", "8192")
FRONT += ("--global-batch", "128", "--tokens", "1T")
STUDY = {
    "name": "grid",
    "jobs": [{"model": "gpt3-1.3b", "seq_len": 2048, "global_batch": 64}],
    "hardware": {
        "base": "tpu-v4",
        "vary": {"tensor_cores": [2, 4, 8, 16, 32], "rows": [32, 64, 128, 256], "cols": [32, 64, 128, 256],
                 "vector_cores": [2, 4, 8, 16, 32, 64], "hbm_stacks": [1, 2, 3, 4, 6, 8],
                 "clock_hz": ["1 GHz", "1.2 GHz"],
                 "shared_sram_bytes": [f"{n} MiB" for n in (16, 32, 64, 96, 128, 192, 256, 384, 512)],
                 "core_sram_bytes": ["8 MiB", "16 MiB"]},
    },
    "cluster": {"chips": 16, "framework": "ideal"},
    "plans": {"tensor_parallel": [1], "context_parallel": [1], "pipeline_parallel": [1], "micro_batch": [1],
              "zero_stage": [0], "recompute": ["none"], "sequence_parallel": [False]},
}  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or shutil.which("node") is None:
        pytest.skip("needs Chromium and Node.js: see `just browser`")
    known = subprocess.run(["node", "-e", "require('playwright-core'); require('axe-core')"], capture_output=True)
    if known.returncode:
        pytest.skip("needs playwright-core and axe-core of npm: see `just browser`")

    def check(*addresses):
        done = subprocess.run(
            ["node", SCRIPT, *map(str, addresses)],
            capture_output=True,
            text=True,
            env=os.environ | {"CHROMIUM": chromium},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return check


def test_reports_are_drawn_and_accessible(browser, tmp_path, command):
    for name, text in (("plan", PLAN), ("wafer", WAFER)):
        (tmp_path / f"{name}.yaml").write_text(text)
        code, _, said = command(
            "report", str(tmp_path / f"{name}.yaml"), "--out", str(tmp_path / f"{name}.html"), "--no-search"
        )
        assert code == 0, said
    _, board, _ = command("validate", "--json")
    (tmp_path / "board.html").write_text(to_html(page_of_answer(json.loads(board), "board.json", "dovetail validate")))
    _, front, _ = command("plan", *FRONT, "--json")
    (tmp_path / "front.html").write_text(to_html(page_of_answer(json.loads(front), "front.json", "dovetail plan")))
    found = browser(*((tmp_path / f"{name}.html").as_uri() for name in ("plan", "wafer", "board", "front")))
    assert [(each["address"], each["wrong"]) for each in found if each["wrong"]] == []
    assert len(found) == 16


def test_a_study_of_a_hundred_thousand_designs_opens_soon(browser, tmp_path):
    (tmp_path / "study.yaml").write_text(to_yaml(STUDY))
    study = dt.Study.load(tmp_path / "study.yaml")
    assert study.size >= 100_000
    dt.explore(tmp_path / "study.yaml", tmp_path / "run")
    (tmp_path / "study.html").write_text(to_html(page_of(tmp_path / "run", "dovetail report run")))
    found = browser((tmp_path / "study.html").as_uri())
    assert [(each["address"], each["wrong"]) for each in found if each["wrong"]] == []
    assert min(each["milliseconds"] for each in found) < SOON


def test_the_served_page_answers(browser):
    with Server(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = browser(f"{server.address}?model=qwen3-0.6b&chip=h100-sxm&chips=8&global_batch=32")
        server.shutdown()
    assert [(each["address"], each["wrong"]) for each in found if each["wrong"]] == []
