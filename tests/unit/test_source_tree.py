"""The walk that the architecture tests rest on, on small trees whose answers are plain."""

from __future__ import annotations

from pathlib import Path

import pytest

from source_tree import cycles, import_edges, read_modules, unreachable, words

PROJECT = '[project.scripts]\ndovetail = "dovetail.cli:main"\n'
TREE = {
    "__init__.py": 'from importlib import import_module\n_PUBLIC = {"plan": "dovetail.search:plan"}\n',
    "__main__.py": "from dovetail.cli import main\n",
    "cli/__init__.py": "from dovetail.cli import show\n\ndef main():\n    show.show()\n",
    "cli/show.py": "def show():\n    from dovetail.models import load\n",
    "models/__init__.py": "from dovetail.models.load import load\nfrom dovetail.models.unused import unused\n",
    "models/load.py": "def load(): ...\n",
    "models/unused.py": "import dovetail.models.under_unused\n\ndef unused(): ...\n",
    "models/under_unused.py": "",
    "search/__init__.py": "from dovetail.search.plan import plan\nfrom dovetail.search.other import other\n",
    "search/plan.py": "if TYPE_CHECKING:\n    import dovetail.search.types\n\ndef plan(): ...\n",
    "search/other.py": "",
    "search/types.py": "",
    "fit.py": "from dovetail import tables\nprint(tables.rows)\n",
    "tables/__init__.py": "from dovetail.tables.rows import rows\nfrom dovetail.tables.columns import columns\n",
    "tables/rows.py": "rows = 1\n",
    "tables/columns.py": "columns = 1\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "src" / "dovetail" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "justfile").write_text("fit:\n    python -m dovetail.fit\n", encoding="utf-8")
    return tmp_path


def test_a_re_export_reaches_only_what_is_taken(tree):
    assert unreachable(read_modules(tree / "src"), tree) == [
        "dovetail.models.under_unused",
        "dovetail.models.unused",
        "dovetail.search.other",
        "dovetail.search.types",
        "dovetail.tables.columns",
    ]


def test_imports_in_functions_count_and_types_do_not(tree):
    edges = import_edges(read_modules(tree / "src"))
    assert edges["dovetail.cli.show"] == {"dovetail.models"}
    assert edges["dovetail.search.plan"] == set()
    assert cycles(edges) == []


def test_groups_that_reach_each_other_are_cycles():
    edges = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": ["d", "f"], "f": [], "g": ["g", "a"]}
    assert cycles(edges) == [("a", "b", "c"), ("d", "e"), ("g",)]


@pytest.mark.parametrize(
    ("name", "parts"),
    [("_least_kept", ["least", "kept"]), ("CutTable", ["cut", "table"]), ("HBMBytes", ["hbm", "bytes"])],
)
def test_words_of_names(name, parts):
    assert words(name) == parts
