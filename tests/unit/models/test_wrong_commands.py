"""Real commands with wrong files and arguments: exit code 2, one line on standard error, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from valid_documents import CONFIGS, MODEL_FILES

#: Arguments (files stand in a folder of their own) and what the sentence must hold.
COMMANDS = [
    ([], "Missing command"),
    (["modles"], "Did you mean 'models'"),
    (["models"], "Missing command"),
    (["models", "list", "extra"], "extra"),
    (["models", "show"], "name"),
    (["models", "show", "lama-3-8b"], "did you mean 'llama-3-8b'"),
    (["models", "show", "a\nb\x1b[31m"], "not in the catalogue"),
    (["models", "show", "llama-3-8b", "--seq-len", "many"], "--seq-len"),
    (["models", "show", "llama-3-8b", "--seq-len", "0"], "--seq-len"),
    (["models", "show", "llama-3-8b", "--seq-len", "1" + "0" * 40], "--seq-len"),
    (["models", "show", "llama-3-8b", "--sequence", "1"], "--sequence"),
    (["models", "show", "absent.yaml"], "absent.yaml: cannot be read"),
    (["models", "show", "folder.yaml"], "folder.yaml: cannot be read"),
    (["models", "show", "misspelt.yaml"], "misspelt.yaml: hiden: is not a field here; did you mean 'hidden'"),
    (["models", "show", "layers.json", "--json"], "layers.json: layers.0.repeat"),
    (["models", "show", "object.yaml"], "object.yaml, line 1"),
    (["models", "show", "laughs.yaml"], "laughs.yaml, line 2"),
    (["models", "show", "empty.yaml"], "empty.yaml: contains nothing"),
    (["models", "show", "latin.yaml"], "latin.yaml: is not UTF-8"),
    (["models", "import"], "config"),
    (["models", "import", "absent.json"], "absent.json: cannot be read"),
    (["models", "import", "unknown.json"], "unknown.json: model_type: 'lama' is not imported"),
    (["models", "import", "heads.json", "--json"], "heads.json: num_key_value_heads"),
    (["models", "import", "right.json", "--out", "absent/model.yaml"], "absent/model.yaml: cannot be written"),
    (["models", "import", "right.json", "--out", "folder.yaml"], "folder.yaml: cannot be written"),
    (["models", "import", "right.json", "--out", "new.yaml", "--seq-len", "-1"], "--seq-len"),
    (["models", "import", "right.json", "--out", "new.txt"], "new.txt: does not end in .yaml or .json"),
    (["models", "import", "config.yaml", "--out", "config.yaml", "--force"], "config.yaml: is the config itself"),
    (["models", "import", "right.json", "--out", "empty.yaml"], "empty.yaml: already exists"),
    (["models", "import", "folder.yaml"], "folder.yaml/config.json: cannot be read"),
    (["models", "show", "heads.json"], "heads.json: num_key_value_heads"),
    (["models", "show", "bert-base", "--seq-len", "513"], "learned positions up to 512"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wrong files."""
    folder = tmp_path_factory.mktemp("wrong")
    dense = MODEL_FILES["dense"]
    misspelt = {"hiden" if name == "hidden" else name: value for name, value in dense.items()}
    layers = dense | {"layers": [{"blocks": ["local", "full"], "repeat": 10**12}]}
    (folder / "folder.yaml").mkdir()
    (folder / "misspelt.yaml").write_text(yaml.safe_dump(misspelt))
    (folder / "layers.json").write_text(json.dumps(layers))
    (folder / "object.yaml").write_text("name: !!python/object/apply:os.system [exit]")
    (folder / "laughs.yaml").write_text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    (folder / "empty.yaml").write_text("")
    (folder / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIGS["llama"]))
    (folder / "right.json").write_text(json.dumps(CONFIGS["llama"]))
    (folder / "unknown.json").write_text(json.dumps(CONFIGS["llama"] | {"model_type": "lama"}))
    (folder / "heads.json").write_text(json.dumps(CONFIGS["llama"] | {"num_key_value_heads": 3}))
    return folder


@pytest.mark.parametrize(("arguments", "named"), COMMANDS, ids=[" ".join(a).strip() or "none" for a, _ in COMMANDS])
def test_a_wrong_command_ends_with_one_sentence(arguments, named, folder):
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith(".\n")
    assert done.stderr.removesuffix("\n").isprintable()
    assert "Traceback" not in done.stderr
    assert named in done.stderr
    assert not (folder / "new.yaml").exists()
