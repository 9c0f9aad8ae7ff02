"""Import of traced models: what is traced, what is refused before torch is imported, and files that are written.

The tracing itself is tested elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from traced_catalogue import BLOCK, SOME, traced
from valid_documents import CONFIGS

import dovetail as dt
from dovetail import documents
from dovetail.errors import InputError
from dovetail.models import TracedModel, importing
from dovetail.models.catalogue import document_of

#: Types that the installed transformers has in these tests.
IN_TRANSFORMERS = ("llama", "llava", "mamba")


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, bool]]:
    """A tracer that always finds the same model; what it was asked."""
    asked: list[tuple[str, str, bool]] = []

    def trace_document(config: Mapping[str, Any], where: str, name: str, *, strict: bool = False) -> TracedModel:
        asked.append((where, name, strict))
        if strict:
            raise InputError(where, "has what is approximated", "leave --strict out")
        if config.get("layers_alike") is False:
            raise InputError(f"{where}: model_type", "is too odd", "use another")
        return traced("llama-3.1-8b", name=name, approximated=SOME, left_out=("a buffer",))

    def from_torch(module: object, example_inputs: object, **options: Any) -> TracedModel:
        del module, example_inputs
        return traced("llama-3.1-8b", name=options["name"], max_seq_len=options["max_seq_len"] or 2**20)

    module = ModuleType("dovetail.models.tracing")
    module.__dict__.update(trace_document=trace_document, from_torch=from_torch)
    monkeypatch.setitem(sys.modules, "dovetail.models.tracing", module)
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    lists = tmp_path / "transformers" / "models" / "auto" / "auto_mappings.py"
    lists.parent.mkdir(parents=True)
    lists.write_text("".join(f'("{name}", "Config"),\n' for name in IN_TRANSFORMERS))
    spec = ModuleSpec("transformers", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "transformers")]
    monkeypatch.setattr(importing, "find_spec", lambda _: spec)
    return asked


def config(folder: Path, **fields: Any) -> str:
    path = folder / "my-model.json"
    path.write_text(json.dumps(CONFIGS["llama"] | fields))
    return str(path)


@pytest.mark.parametrize("out", ["model.yaml", "model.json"])
def test_a_config_is_traced_where_that_is_asked_for(out, tracing, tmp_path, command):
    path, written = config(tmp_path), tmp_path / out
    code, text, _ = command("models", "import", path, "--trace", "--out", str(written))
    assert code == 0
    assert tracing == [(path, "my-model", False)]
    assert f"a scan as attention: 1 in {BLOCK}, first attention" in text
    assert "a buffer" in text
    assert text.endswith(f"\nwrote {written}\n")
    model = dt.models.load(str(written))
    assert isinstance(model, TracedModel)
    assert model.approximated == SOME
    code, text, _ = command("models", "import", path, "--trace", "--json")
    assert json.loads(text)["approximated"] == [
        {"layer": BLOCK, "operator": "attention", "words": "a scan as attention"}
    ]
    assert json.loads(text)["left_out"] == ["a buffer"]


def test_wrong_imports_end_with_one_sentence(tracing, tmp_path, command):
    path = config(tmp_path)
    for arguments, named in (
        ((path, "--strict"), "--strict: is for traced models, and my-model is not traced; add --trace"),
        (("llama-3.1-8b", "--strict"), "--strict: is for traced models, and llama-3.1-8b is not traced"),
        ((path, "--trace", "--strict"), "has what is approximated"),
        (("llama-3.1-8b", "--trace"), "is neither a config.json"),
        ((path, "--out", str(tmp_path / "model.txt")), "does not end in .yaml or .json"),
    ):
        code, out, error = command("models", "import", *arguments)
        assert (code, out) == (2, "")
        assert named in error
    assert [strict for _, _, strict in tracing] == [True]


@pytest.mark.parametrize("model_type", ["mamba", "llava"])
def test_a_family_that_is_not_read_is_traced(model_type, tracing, tmp_path):
    model = dt.models.from_huggingface(config(tmp_path, model_type=model_type))
    assert isinstance(model, TracedModel)
    assert model.name == "my-model"
    assert dt.models.load(config(tmp_path, model_type=model_type)) == model
    assert tracing == 2 * [(str(tmp_path / "my-model.json"), "my-model", False)]
    assert not isinstance(dt.models.from_huggingface(config(tmp_path)), TracedModel)


@pytest.mark.parametrize("model_type", ["mamba", "llava"])
def test_without_the_packages_the_sentence_names_the_extra(model_type, monkeypatch, tmp_path, refusal):
    monkeypatch.setattr(importing, "find_spec", lambda _: None)
    path = config(tmp_path, model_type=model_type)
    extra = 'pip install "dovetail[torch]"'
    assert extra in refusal(dt.models.from_huggingface, path)
    assert extra in refusal(importing.trace_config, path)
    assert extra in refusal(dt.models.from_torch, object(), {})


def test_a_module_is_traced(tracing):
    model = dt.models.from_torch(object(), {}, name="mine", max_seq_len=4096)
    assert (model.name, model.max_seq_len) == ("mine", 4096)
    assert tracing == []


def test_a_family_that_is_traced_takes_strict(tracing, tmp_path, command):
    code, out, error = command("models", "import", config(tmp_path, model_type="mamba"), "--strict")
    assert (code, out) == (2, "")
    assert "my-model.json: has what is approximated; leave --strict out." in error
    assert [strict for _, _, strict in tracing] == [True]


def test_where_tracing_fails_the_sentence_says_both(tracing, tmp_path, refusal):
    path = config(tmp_path, model_type="mamba", layers_alike=False)
    assert refusal(dt.models.from_huggingface, path) == (
        f"{path}: model_type: needs a selective scan (Mamba-1), which Dovetail does not model, and tracing it fails: "
        "model_type is too odd; use another."
    )
    assert len(tracing) == 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"model_type": "qwen33"},
            "model_type: 'qwen33' is not imported, and the installed transformers does not have it;",
        ),
        ({"model_type": "qwen33"}, "did you mean 'qwen3'."),
        ({"model_type": "Qwen3"}, "did you mean 'qwen3'."),
        ({"model_type": "deepseekv4"}, "did you mean 'deepseek_v4'."),
        ({"model_type": "zzz"}, "a newer transformers may have it."),
        ({"model_type": "qwen33", "auto_map": {}}, "its code is the model's own (auto_map): build the module and use"),
        ({"model_type": None}, "model_type: is missing; add it as the model's own config has it."),
        ({"model_type": "qwen3"}, "model_type: is 'qwen3', which the installed transformers does not have; import it"),
    ],
)
@pytest.mark.parametrize("trace", [True, False])
def test_a_type_nobody_has_is_refused_without_torch(fields, sentence, trace, tracing, tmp_path, refusal):
    path = config(tmp_path, **fields)
    if trace:
        assert sentence in refusal(importing.trace_config, path)
    elif fields == {"model_type": "qwen3"}:
        assert dt.models.from_huggingface(path).source.endswith("model_type qwen3")
    else:
        assert sentence in refusal(dt.models.from_huggingface, path)
    assert tracing == []


def test_a_model_with_code_of_its_own_is_built_by_the_user(tracing, tmp_path, refusal):
    """Its text part is of a family that we read but for an operator."""
    text = CONFIGS["kimi_linear"] | {"attn_res_block_size": 4}
    path = config(tmp_path, model_type="kimi_k3", auto_map={"AutoModel": "modeling.Model"}, text_config=text)
    for read in (dt.models.from_huggingface, importing.trace_config):
        assert "(auto_map): build the module and use dt.models.from_torch." in refusal(read, path)
    assert tracing == []


def test_types_of_a_transformers_that_is_imported_are_asked_of_it(tracing, tmp_path, monkeypatch, refusal):
    imported = ModuleType("transformers")
    imported.__dict__["CONFIG_MAPPING"] = {"registered": object}
    monkeypatch.setitem(sys.modules, "transformers", imported)
    assert isinstance(dt.models.from_huggingface(config(tmp_path, model_type="registered")), TracedModel)
    assert "does not have" in refusal(importing.trace_config, config(tmp_path, model_type="llama"))
    assert len(tracing) == 1


def test_a_model_too_long_for_a_file_is_refused(tracing, tmp_path, monkeypatch, command):
    path = config(tmp_path)
    monkeypatch.setattr(documents, "MAX_YAML_BYTES", 5000)
    arguments = ("models", "import", path, "--trace", "--out")
    code, out, error = command(*arguments, str(tmp_path / "model.yaml"))
    assert (code, out) == (2, "")
    assert error.endswith(
        "model.yaml: would be longer than the 5,000 bytes that a YAML file may have; give it the ending .json.\n"
    )
    assert command(*arguments, str(tmp_path / "model.json"))[0] == 0
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 5000)
    code, out, error = command(*arguments, str(tmp_path / "other.json"))
    assert (code, out) == (2, "")
    assert "other.json: would be longer than the 5,000 bytes that a JSON file may have" in error
    assert not (tmp_path / "other.json").exists()


def test_a_described_model_may_be_written_as_json(tmp_path, command):
    path = config(tmp_path)
    for out in ("model.yaml", "model.json"):
        assert command("models", "import", path, "--out", str(tmp_path / out))[0] == 0
        assert dt.models.load(str(tmp_path / out)) == dt.models.from_huggingface(path)


def test_layers_are_said_by_what_they_are(tmp_path, command):
    document = document_of(traced("llama-3.1-8b"))
    layers = document["graph"]["layers"]
    block = layers.pop(BLOCK)
    layers |= dict.fromkeys(("vision_block", "between", "block", "block_2"), block)
    counts = {"embedding": 1, "vision_block": 3, "between": 1, "block": 1, "block_2": 4, "head": 1}
    document["graph"]["chain"] = [{"layer": layer, "count": count} for layer, count in counts.items()]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    code, out, _ = command("models", "show", str(path))
    assert code == 0
    assert "layers      9 (3 vision blocks, 5 blocks, 1 between), hidden 4096," in out
    assert json.loads(command("models", "show", str(path), "--json")[1])["layers"] == 9
    path.write_text(json.dumps(document_of(traced("llama-3.1-8b"))))
    assert "layers      32, hidden 4096," in command("models", "show", str(path))[1]
