"""Models by alias, by path of a Hugging Face config and by id on the Hub: cache, download, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from valid_documents import CONFIGS

from dovetail import models
from dovetail.cli.question import asked
from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.models import hub
from dovetail.models.aliases import HUB_IDS, OTHER_NAMES, spelling
from dovetail.models.catalogue import document_of
from dovetail.models.huggingface import import_config
from dovetail.plans.plan_file import load_task
from dovetail.plans.write import plan_document

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA = CONFIGS["llama"]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and no network."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return folder


def put(cache: Path, hub_id: str, config: object, *, commit: str = COMMIT, ref: str = "main") -> Path:
    """A config in the layout of huggingface_hub, as a link to a blob."""
    folder = cache / f"models--{hub_id.replace('/', '--')}"
    blob = folder / "blobs" / commit[::-1]
    path = folder / "snapshots" / commit / "config.json"
    for made in (blob, path, folder / "refs" / ref):
        made.parent.mkdir(parents=True, exist_ok=True)
    blob.write_text(json.dumps(config))
    path.symlink_to(os.path.relpath(blob, path.parent))
    (folder / "refs" / ref).write_text(commit)
    return path


def sentence(name: str) -> str:
    with pytest.raises(InputError) as refused:
        models.load(name)
    return str(refused.value)


# Aliases


def test_every_alias_points_to_a_model_of_the_catalogue():
    assert {*OTHER_NAMES.values(), *HUB_IDS.values()} <= set(models.names())


def test_no_two_names_have_one_spelling():
    spellings = [spelling(name) for name in (*models.names(), *OTHER_NAMES)]
    assert len(set(spellings)) == len(spellings)
    assert len({each.casefold() for each in HUB_IDS}) == len(HUB_IDS)
    assert all(str(hub.hub_id(each)) == each for each in HUB_IDS)


def test_the_hub_id_of_each_source_is_an_alias():
    data = Path(models.__file__).parent / "data"
    for name in models.names():
        last = yaml.load((data / f"{name}.yaml").read_text(), yaml.CSafeLoader)["source"].rsplit("; ", 1)[-1]
        if hub.hub_id(last) is not None:
            assert HUB_IDS[last] == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("gpt2-xl", "gpt2-1.5b"),
        ("gpt3", "gpt3-175b"),
        ("GPT-3", "gpt3-175b"),
        ("llama3-70b", "llama-3-70b"),
        ("Llama-3-70B-Instruct", "llama-3-70b"),
        ("llama3.1_405b", "llama-3.1-405b"),
        ("llama2-7b", "llama-2-7b"),
        ("deepseekv3", "deepseek-v3"),
        ("deepseek-v3-671b", "deepseek-v3"),
        ("mixtral", "mixtral-8x7b"),
        ("qwen3-30b", "qwen3-30b-a3b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("META-LLAMA/llama-3.1-70b", "llama-3.1-70b"),
    ],
)
def test_an_alias_is_the_catalogue_model(alias, name, cache):
    assert models.catalogue_name(alias) == name
    assert models.load(alias) is models.load(name)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama-27b", "llama-3", "llama", "qwen2-5-7b", "falcon", "", "-", "llama-270b"]
)
def test_an_ambiguous_name_is_no_alias(name, cache):
    assert models.catalogue_name(name) is None
    assert "is not in the catalogue" in sentence(name)


# Paths


def test_a_config_and_its_folder_are_models(cache, tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "other.json").write_text(json.dumps(LLAMA))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(LLAMA))
    model = models.load(str(folder / "config.json"))
    assert model == models.load("My-Model") == models.from_huggingface(folder)
    assert model.name == "my-model"
    assert models.load("other.json") == models.load("other.yaml") == model.model_copy(update={"name": "other"})


def test_a_model_file_may_be_called_config_json(cache, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(document_of(models.load("llama-3-8b"))))
    assert models.load("config.json") == models.load("llama-3-8b")


def test_a_config_without_a_type_is_named_so(cache, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({n: v for n, v in LLAMA.items() if n != "model_type"}))
    assert sentence("config.json").startswith("config.json: model_type: is missing")


@pytest.mark.parametrize("name", ["acme/small", "meta-llama/Llama-3.1-70B", "gpt2-xl"])
def test_a_local_folder_comes_before_aliases_and_ids(name, cache, tmp_path):
    put(cache, "acme/small", LLAMA | {"num_hidden_layers": 5})
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 3}))
    assert models.load(name).num_layers == 3


def test_a_folder_without_a_config_is_refused_unless_its_name_is_an_alias(cache, tmp_path):
    for name in ("acme/small", "gpt2-xl"):
        (tmp_path / name).mkdir(parents=True)
    put(cache, "acme/small", LLAMA)
    assert sentence("acme/small").startswith("acme/small/config.json: cannot be read")
    assert models.load("gpt2-xl").name == "gpt2-1.5b"


# Plan files


@pytest.mark.parametrize("how", ["config", "id", "alias"])
def test_a_plan_file_holds_the_whole_model(how, cache, tmp_path):
    config = LLAMA | {"attention_bias": False, "mlp_bias": False}
    put(cache, "acme/small", config)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    name = {"config": "config.json", "id": "acme/small", "alias": "GPT2-XL"}[how]
    job = {"model": name, "seq_len": 64, "global_batch": 8}
    (tmp_path / "in" / "plan.yaml").write_text(
        yaml.safe_dump({"job": job, "cluster": {"chip": "h100-sxm", "chips": 8}, "plan": {"data_parallel": 8}})
    )
    task = load_task(tmp_path / "in" / "plan.yaml")
    document = plan_document(task.plan, task.job, task.cluster, task.framework.name)
    assert document["job"]["model"] == "gpt2-1.5b" if how == "alias" else isinstance(document["job"]["model"], dict)
    out = tmp_path / "elsewhere.yaml"
    out.write_text(to_yaml(document))
    (tmp_path / "in" / "config.json").unlink()
    cache.rename(tmp_path / "gone")
    assert load_task(out) == task


def test_a_flag_and_a_file_may_name_one_model_in_two_ways(cache, tmp_path):
    file = tmp_path / "plan.yaml"
    rest = {"seq_len": 64, "global_batch": 8}
    file.write_text(yaml.safe_dump({"job": {"model": "gpt2-xl", **rest}, "cluster": {"chip": "h100-sxm", "chips": 8}}))
    question = asked(file, {"job.model": "openai-community/gpt2-xl"}, None).question()
    assert question.job.model.name == "gpt2-1.5b"
    with pytest.raises(InputError, match="but --model says llama-3-8b"):
        asked(file, {"job.model": "llama3-8b"}, None)
    with pytest.raises(InputError, match=r"^--model: 'acme/absent' is not in the local"):
        asked(None, {"job.model": "acme/absent"}, None)


# The cache


def test_an_id_is_read_from_the_cache(cache):
    put(cache, "acme/Small_Model-v0.1", LLAMA)
    model = models.load("acme/Small_Model-v0.1")
    expected = import_config(LLAMA, "", name="small_model-v0.1")
    assert model.model_copy(update={"source": ""}) == expected.model_copy(update={"source": ""})
    assert model.source == f"acme/Small_Model-v0.1 at {COMMIT[:12]}: Hugging Face config, model_type llama"


def test_a_revision_is_a_ref_or_a_commit(cache):
    other = COMMIT[::-1]
    put(cache, "acme/small", LLAMA | {"num_hidden_layers": 3})
    put(cache, "acme/small", LLAMA | {"num_hidden_layers": 5}, commit=other, ref="v2")
    layers = {at: models.load(f"acme/small{at}").num_layers for at in ("", "@main", "@v2", f"@{COMMIT}", f"@{other}")}
    assert layers == {"": 3, "@main": 3, "@v2": 5, f"@{COMMIT}": 3, f"@{other}": 5}


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "~/b"}, "/home/me/b/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, "/home/me/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(given, folder, monkeypatch):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **given}.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == Path(folder)


@pytest.mark.parametrize("ref", ["", "../../../../etc", "main", "0" * 39, "0" * 100, "é" * 40])
def test_a_wrong_ref_is_not_followed(ref, cache):
    path = put(cache, "acme/small", LLAMA)
    (path.parents[2] / "refs" / "main").write_text(ref)
    assert "is not in the local Hugging Face cache" in sentence("acme/small")


def test_a_wrong_config_is_named_by_its_id(cache):
    put(cache, "acme/small", LLAMA | {"num_key_value_heads": 3})
    put(cache, "acme/long", LLAMA | {"text": "x" * 2**22})
    assert sentence("acme/small").startswith("acme/small/config.json: num_key_value_heads")
    assert "has more than 4194304 bytes" in sentence("acme/long")


# Refusals


@pytest.mark.parametrize(
    "name",
    [
        "acme/../small", "../small", "acme/..", "/acme/small", "acme/small/", "acme//small", "a/b/c", "acme/.small",
        "acme/small@", "acme/small@a/b", "acme/small@..", "acme/a--b", "acme/a..b", "-acme/small", "acme/sm all",
        "acme/small\n", "acme/smäll", f"acme/{'x' * 97}", "https://huggingface.co/acme/small", "./small", "~/small",
        "a\0/b", "acme/" + "x" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_id_is_never_looked_up(name, cache, monkeypatch):
    monkeypatch.setattr(hub, "_cached", None)
    assert hub.hub_id(name) is None
    assert "is neither a Hugging Face id nor an existing path" in sentence(name)


def test_offline_is_said(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert sentence("acme/small") == (
        "model: 'acme/small' is not in the local Hugging Face cache, and HF_HUB_OFFLINE is set; "
        "unset it, or give the path of its config.json."
    )


def test_the_missing_extra_is_said(cache, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert sentence("acme/small") == (
        "model: 'acme/small' is not in the local Hugging Face cache, and huggingface_hub is not installed; "
        'run `pip install "dovetail[hub]"` to download it, or give the path of its config.json.'
    )


# Download, with the real package and a Hub of our own

ANSWERS = {"gated": (403, "GatedRepo"), "absent": (404, "RepoNotFound"), "empty": (404, "EntryNotFound")}
SCRIPT = """
import json, sys
from dovetail import models
from dovetail.errors import InputError
answers = {}
for name in sys.argv[1:]:
    try:
        model = models.load(name)
        answers[name] = [model.name, model.num_layers, model.source]
    except InputError as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """The address of a Hub that knows acme/small, and the paths asked of it."""
    paths: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def answer(self, content: bytes) -> None:
            paths.append(f"{self.command} {self.path}")
            repository, _, rest = self.path.partition("/resolve/")
            name = repository.removeprefix("/acme/")
            status, code = ANSWERS.get(name, (200, ""))
            if name not in ("small", "huge", *ANSWERS):
                status, code = 500, ""
            elif rest.startswith("other/"):
                status, code = 404, "RevisionNotFound"
            self.send_response(status)
            size = 2**33 if name == "huge" else len(content)
            fields = {"X-Repo-Commit": COMMIT, "ETag": '"abc"', "Content-Length": str(size), "X-Error-Code": code}
            for field, value in fields.items():
                self.send_header(field, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.answer(json.dumps(LLAMA).encode())

        do_GET = do_HEAD  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    server.server_close()


def loaded(cache: Path, endpoint: str, *names: str, **environment: str) -> dict[str, object]:
    given = {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache.parent), "HF_ENDPOINT": endpoint, **environment}
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True, timeout=60, env=kept | given
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="needs the [hub] extra")
def test_the_config_alone_is_downloaded_and_cached(tmp_path, server):
    endpoint, paths = server
    cache = tmp_path / "cache"
    names = ["acme/small", *(f"acme/{name}" for name in ANSWERS), "acme/small@other", "acme/huge", "acme/broken"]
    answers = loaded(cache, endpoint, *names)
    assert answers["acme/small"] == [
        "small", LLAMA["num_hidden_layers"], f"acme/small at {COMMIT[:12]}: Hugging Face config, model_type llama"
    ]  # fmt: skip
    on_hub = "on the Hugging Face Hub"
    assert f"'acme/gated' is gated {on_hub}; ask for access" in str(answers["acme/gated"])
    assert f"'acme/absent' is not {on_hub}; correct the id" in str(answers["acme/absent"])
    assert f"'acme/empty' has no config.json {on_hub}" in str(answers["acme/empty"])
    assert f"'acme/small@other' has no such revision {on_hub}" in str(answers["acme/small@other"])
    assert "'acme/huge' has a config.json of more than 4194304 bytes" in str(answers["acme/huge"])
    assert 'the download failed ("Server error' in str(answers["acme/broken"])
    assert {path.rsplit("/", 1)[1] for path in paths if "/acme/" in path} == {"config.json"}
    assert not [path for path in paths if path.startswith("GET") and "huge" in path]
    # without a network: the same model from the cache, and one sentence for another
    without = loaded(cache, "http://127.0.0.1:1", "acme/small", "acme/other")
    assert without["acme/small"] == answers["acme/small"]
    other = str(without["acme/other"])
    assert "'acme/other' is not in the local Hugging Face cache, and the download failed (" in other
    assert other.endswith("; check the network, or give the path of its config.json.")
