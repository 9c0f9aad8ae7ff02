"""The page of `dovetail serve`: who may ask, what is answered, and that it says what the commands say."""

import json
import threading
from dataclasses import replace
from http.client import HTTPConnection
from urllib.parse import urlencode

import pytest

import dovetail as dt
from dovetail.accuracy import published_runs
from dovetail.documents import to_yaml
from dovetail.plans.words import plan_words
from dovetail.serve import application
from dovetail.serve.application import Application
from dovetail.serve.questions import asked
from dovetail.serve.server import Server

SMALL = {"model": "qwen3-0.6b", "chip": "h100-sxm", "chips": "8", "global_batch": "32", "seq_len": "4096"}


@pytest.fixture(scope="module")
def server():
    with Server(0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def get(server, path, fields=None, host=None, token=None):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    query = f"?{urlencode(fields)}" if fields else ""
    address = f"/{server.token if token is None else token}/{path}{query}"
    connection.request("GET", address, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    response = connection.getresponse()
    return response.status, response.read().decode(), response.headers


def test_only_this_machine_with_the_token_is_answered(server):
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "")[0] == 200
    assert get(server, "", token="")[0] == 403
    assert get(server, "", token="x" * 22)[0] == 403
    # another site's name that resolves to this machine
    assert get(server, "", host="evil.example")[0] == 403
    assert get(server, "a" * 9000)[0] == 414
    assert get(server, "no-such-page")[0] == 404
    assert get(server, "../../etc/passwd")[0] == 404


def test_a_page_may_load_and_ask_itself_alone(server):
    _, text, headers = get(server, "")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "http://" not in text
    assert "https://" not in text


def test_the_answer_is_that_of_the_command(server):
    status, text, _ = get(server, "answer", SMALL)
    job = dt.Job(dt.models.load("qwen3-0.6b"), seq_len=4096, global_batch=32)
    best = dt.plan(job, dt.hardware.cluster("h100-sxm", chips=8))
    assert status == 200
    assert plan_words(best.plan) in text
    assert f"{best.certificate.counted:,} plans" in text
    assert "data-kind='timeline'" in text
    launch = get(server, "launch", SMALL | {"to": "megatron", "start": "slurm"})
    assert launch[1] == dt.export(best, "megatron", start="slurm").text
    assert launch[2]["Content-Disposition"].startswith("attachment")


def test_another_plan_is_estimated_and_compared(server):
    _, text, _ = get(server, "what-if", SMALL | {"changes": json.dumps({"tensor_parallel": 2})})
    assert "TP2" in text
    assert "+" in text
    _, text, _ = get(server, "what-if", SMALL | {"changes": json.dumps({"micro_batch": 3})})
    assert "does not divide" in text
    for changes in ("[]", "{", json.dumps({"layouts": 1})):
        assert "class='wrong'" in get(server, "what-if", SMALL | {"changes": changes})[1]


def test_chips_are_compared(server):
    _, text, _ = get(server, "answer", SMALL | {"chip": "h100-sxm, b200"})
    assert text.count("<tr>") == 3


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model": ""}, "model: is missing"),
        ({"model": "<b>gpt</b>"}, "is neither a Hugging Face id nor an existing path"),
        ({"chip": "h9000"}, "is not in the catalogue"),
        ({"chips": "many"}, "it should be a whole number"),
        ({"chips": ""}, "is missing"),
        ({"chip": ",".join(["h100-sxm"] * 7)}, "compare up to 6"),
        ({"framework": "tensorflow"}, "framework"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(fields, sentence):
    text = Application().respond("answer", SMALL | fields).content
    assert sentence in text
    assert "<b>" not in text


def test_a_wafer_is_answered_with_its_map():
    wafer = SMALL | {
        "model": "gpt3-1.3b",
        "chip": "watos-buildable",
        "chips": "56",
        "seq_len": "2048",
        "global_batch": "56",
    }
    assert "dies of watos-buildable" in Application().respond("answer", wafer).content


def test_the_scoreboard_is_computed_once(monkeypatch):
    published = published_runs()
    few = replace(published, runs=published.runs[:12])
    monkeypatch.setattr(application, "published_runs", lambda: few)
    page = Application()
    text = page.respond("accuracy", {}).content
    assert "Predictions against measured runs" in text
    monkeypatch.setattr(application, "published_runs", None)
    assert page.respond("accuracy", {}).content == text


def test_what_nobody_says_is_what_runs_usually_have():
    question = asked({"model": "llama3-8b", "chip": "h100-sxm", "chips": "64"})
    assert (question.seq_len * question.global_batch, question.framework) == (4 * 2**20, "megatron")
    assert question.model == "llama-3-8b"


def test_what_does_not_fit_is_said_with_the_smallest_fix():
    tight, page = SMALL | {"model": "llama-2-13b", "chips": "1", "framework": "deepspeed"}, Application()
    text = page.respond("answer", tight).content
    assert "No plan fits" in text
    assert "times as much is enough" in text
    assert "none fits" in page.respond("launch", tight | {"to": "deepspeed"}).content


def test_a_study_is_watched(tmp_path):
    study = {
        "name": "tiny",
        "jobs": [{"model": "gpt3-1.3b", "seq_len": 2048, "global_batch": 64}],
        "hardware": {"base": "tpu-v4", "vary": {"tensor_cores": [4, 8]}},
        "cluster": {"chips": 16, "framework": "ideal"},
        "plans": {"tensor_parallel": [1], "context_parallel": [1], "pipeline_parallel": [1], "micro_batch": [1],
                  "zero_stage": [0], "recompute": ["none"], "sequence_parallel": [False]},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(to_yaml(study))
    dt.explore(tmp_path / "study.yaml", tmp_path / "run")
    assert "Study tiny" in Application(tmp_path / "run").respond("study", {}).content
    assert "start `dovetail serve RUN_DIR`" in Application().respond("study", {}).content


def test_a_taken_port_or_a_missing_run_is_refused(server, command):
    code, _, said = command("serve", "--port", str(server.server_port))
    assert (code, "cannot be used" in said) == (2, True)
    code, _, said = command("serve", "no-such-run")
    assert (code, "is not a directory" in said) == (2, True)
