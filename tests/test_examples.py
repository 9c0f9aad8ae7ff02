"""README and documentation run: every `$ dovetail` command, shell and Python example."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.plans.plan_file import load_task

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

CONFIG = """{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true}"""


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands(page):
    lines = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line)[1:] for line in lines if line.startswith("dovetail ")]


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.name)
def test_commands_run(page, tmp_path):
    (tmp_path / "config.json").write_text(CONFIG)
    plans = [text for text in blocks(page, "yaml") if text.startswith("job:")]
    (tmp_path / "plan.yaml").write_text(plans[0] if plans else "")
    for arguments in commands(page):
        done = subprocess.run(
            [sys.executable, "-m", "dovetail", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert done.stdout


def shown_after(page):
    """Shell examples in order, each with the output that the page shows directly after it, if it shows any."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"```bash\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "bash")], ids=lambda p: p.name)
def test_shell_examples_run_and_print_what_the_page_shows(page, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for code, shown in shown_after(page):
        done = subprocess.run(
            ["bash", "-ec", code], cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PATH": path}
        )
        # progress and notes go to stderr
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        assert done.stdout
        printed = {" ".join(line.split()) for line in done.stdout.splitlines()}
        missing = [line for line in shown.splitlines() if "..." not in line and " ".join(line.split()) not in printed]
        assert not missing, (missing, done.stdout)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_examples_run(page, tmp_path):
    studies = [text for text in blocks(page, "yaml") if "\njobs:" in text]
    (tmp_path / "study.yaml").write_text(studies[0] if studies else "")
    for code in blocks(page, "python"):
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "yaml")], ids=lambda p: p.name)
def test_files_load(page, tmp_path):
    for number, text in enumerate(blocks(page, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        if "\njobs:" in text:
            assert dt.Study.load(path).size
        elif "\nblocks:" in text:
            assert dt.models.summarise(dt.models.load(str(path))).parameters > 0
        elif text.startswith("job:"):
            task = load_task(path)
            result = dt.evaluate(task.plan, task.job, task.cluster, task.framework)
            assert result.fits
            assert result.step_time_s > 0
        elif "\nvary:" in text:
            assert dt.hardware.space(str(path)).count().kept
        else:
            assert dt.hardware.cluster(str(path)).tiers


@pytest.mark.parametrize("script", ["answer_picture.py", "results/plots.py"])
def test_pictures_show_what_is_computed_or_tabled(script):
    done = subprocess.run([sys.executable, ROOT / "docs" / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
