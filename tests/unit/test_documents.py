"""Users' files: bounded, safe, and one sentence when wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from dovetail.documents import MAX_DEPTH, MAX_FILE_BYTES, MAX_YAML_BYTES, Spec, parse_document, read_document, validate
from dovetail.exploration.study_file import SearchPart
from dovetail.frameworks.state import BytesAllowanceSpec
from timing import within

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)
DOCUMENTS = st.dictionaries(NAMES, TREES, max_size=5)


@given(document=DOCUMENTS)
def test_what_json_and_yaml_write_is_read_back(document):
    assert parse_document(json.dumps(document), "x.json", json_only=True) == document
    assert parse_document(yaml.safe_dump(document, allow_unicode=True), "x.yaml") == document


@given(text=st.text(max_size=200) | st.text("{}[]:,-&*!|>'\"%@` \n\t#?<=~.0123456789xabeE_+", max_size=60))
def test_any_text_is_read_or_refused(text, refusal):
    for json_only in (False, True):
        try:
            assert isinstance(parse_document(text, "x", json_only=json_only), dict)
        except ValueError:
            refusal(parse_document, text, "x", json_only=json_only)


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{n}: &{n} [*{p}, *{p}, *{p}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)
)

WRONG_YAML = {
    "object": "a: !!python/object:os.system {}",
    "call": "a: !!python/object/apply:os.system [ls]",
    "name": "a: !!python/name:os.system",
    "timestamp tag": 'a: !!timestamp "soon"',
    "bool tag": 'a: !!bool "perhaps"',
    "int tag": 'a: !!int ""',
    "set tag": "a: !!set {b, c}",
    "own tag": "a: !mine 3",
    "alias": "a: &x 1\nb: *x",
    "self": "a: &x [*x]",
    "laughs": LAUGHS,
    "merge": "a: &x {b: 1}\nc: {<<: *x}",
    "merge with a number": "<<: 3",
    "twice": "a: 1\na: 2",
    "twice below": "a: {b: 1, c: 2, b: 3}",
    "number as name": "1: 2",
    "number as name below": "a: {b: [{2: 3}]}",
    "yes as name": "on: 1",
    "nothing as name": "~: 1",
    "list as name": "[a, b]: 1",
    "mapping as name": "{a: b}: 1",
    "nan": "a: .nan",
    "inf below": "a: [1, {b: -.inf}]",
    "no month": "a: 2024-13-45",
    "hour": "a: 2024-01-01 99:00:00",
    "no digits": "a: 0b_",
    "sexagesimal": "a: 1" + ":00" * 300 + ".5",
    "flow": "a: " + "[" * 5000,
    "nested": "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "compact": "- " * 5000 + "a",
    "deep mappings": "{a: " * 5000,
    "empty": "",
    "comment": "# nothing",
    "null": "null",
    "list": "[1, 2]",
    "text": "hello",
    "number": "3",
    "date": "2024-01-01",
    "two": "---\na: 1\n---\nb: 2",
    "control": "a: \x07",
    "tab": "a:\n\t- b",
    "open": 'a: "b',
    "colon": "a: b: c",
    "surrogate": "a: \ud800",
}

WRONG_JSON = {
    "nan": '{"a": NaN}',
    "inf": '{"a": [Infinity]}',
    "minus inf": '{"a": {"b": -Infinity}}',
    "overflow": '{"a": 1e999}',
    "long number": '{"a": ' + "1" * 5000 + "}",
    "twice": '{"a": 1, "a": 2}',
    "twice below": '{"a": [{"b": 1, "b": 2}]}',
    "deep": '{"a": ' + "[" * 100_000,
    "nested": '{"a": ' + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "}",
    "empty": "",
    "list": "[]",
    "text": '"a"',
    "open": "{",
    "comma": '{"a": 1,}',
    "comment": '{"a": 1} // no',
    "quote": "{'a': 1}",
    "two": "{} {}",
}


@pytest.mark.parametrize("text", WRONG_YAML.values(), ids=WRONG_YAML.keys())
def test_wrong_yaml_is_refused(text, refusal):
    with within(3):
        sentence = refusal(parse_document, text, "x.yaml")
    assert sentence.startswith("x.yaml")


@pytest.mark.parametrize("text", WRONG_JSON.values(), ids=WRONG_JSON.keys())
def test_wrong_json_is_refused(text, refusal):
    with within(3):
        sentence = refusal(parse_document, text, "x.json", json_only=True)
    assert sentence.startswith("x.json")


def test_the_line_or_the_field_is_named(refusal):
    assert "x.yaml, line 3" in refusal(parse_document, "a: 1\nb: 2\nc: [", "x.yaml")
    assert "x.yaml, line 2" in refusal(parse_document, "a: &x 1\nb: *x", "x.yaml")
    assert "x.json, line 2" in refusal(parse_document, '{"a": 1,\n"b"}', "x.json", json_only=True)
    assert "x.yaml: a.b.1" in refusal(parse_document, "a: {b: [1, .nan]}", "x.yaml")
    assert "'twice'" in refusal(parse_document, '{"twice": 1, "twice": 2}', "x.json", json_only=True)


def test_configs_may_hold_what_python_writes_as_json():
    limits = parse_document('{"time_step_limit": [0.0, Infinity]}', "config.json", json_only=True, finite=False)
    assert limits == {"time_step_limit": [0.0, math.inf]}


def test_files_that_cannot_be_read(tmp_path, refusal):
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: é".encode("latin-1"))
    assert "UTF-8" in refusal(read_document, latin)
    binary = tmp_path / "binary.json"
    binary.write_bytes(bytes(range(256)))
    assert "UTF-8" in refusal(read_document, binary)
    assert "directory" in refusal(read_document, tmp_path)
    assert "No such file" in refusal(read_document, tmp_path / "absent.yaml")
    assert "Not a directory" in refusal(read_document, latin / "below.yaml")
    assert "too long" in refusal(read_document, tmp_path / ("x" * 300))
    refusal(read_document, "nul\0.yaml")
    refusal(read_document, "/dev/zero")


def test_files_over_the_limit_are_not_read_whole(tmp_path, refusal):
    for name, most in (("big.json", MAX_FILE_BYTES), ("big.yaml", MAX_YAML_BYTES)):
        path = tmp_path / name
        path.write_bytes(b" " * most + b"{")
        with within(0.5):
            assert f"more than {most} bytes" in refusal(read_document, path)


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_document(path) == {"a": 1}


class Wheel(Spec):
    kind: Literal["wheel"]
    size: Annotated[int, Field(ge=1, le=10)]


class Leg(Spec):
    kind: Literal["leg"]
    length: float


class Cart(Spec):
    name: str
    colour: Literal["red", "blue"] = "red"
    parts: dict[str, Annotated[Wheel | Leg, Field(discriminator="kind")]]
    weights: tuple[float, ...] = Field((), strict=False, max_length=3)


CART = {"name": "c", "parts": {"a": {"kind": "wheel", "size": 3}, "b": {"kind": "leg", "length": 1.0}}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": 3}, "x: name: is 3; it should be a valid string."),
        ({"colour": "rde"}, "x: colour: is 'rde'; it should be 'red' or 'blue'."),
        ({"color": "red"}, "x: color: is not a field here; did you mean 'colour'."),
        ({"parts": {"a": {"kind": "weel"}}}, "x: parts.a: has kind 'weel'; it should be 'wheel', 'leg'."),
        ({"parts": {"a": {"size": 3}}}, "x: parts.a: has no kind; add the field 'kind'."),
        ({"parts": {"a": {"kind": "wheel"}}}, "x: parts.a.size: is missing; add this field."),
        ({"parts": {"a": {"kind": "wheel", "sise": 3}}}, "x: parts.a.sise: is not a field here; did you mean 'size'."),
        (
            {"parts": {"a": {"kind": "wheel", "size": 11}}},
            "x: parts.a.size: is 11; it should be less than or equal to 10.",
        ),
        ({"parts": {"a": 3}}, "x: parts.a: is 3; it should be a valid dictionary or object to extract fields from."),
        ({"weights": [1.0, "2"]}, "x: weights.1: is '2'; it should be a valid number."),
        ({"weights": [1.0] * 4}, "x: weights: is [1.0, 1.0, 1.0, 1.0]; it should have at most 3 items, not 4."),
    ],
)
def test_the_sentence_names_the_field_as_the_file_has_it(change, sentence, refusal):
    assert refusal(validate, Cart, CART | change, "x") == sentence


class Ends(Spec):
    """Two numbers, no more and no less."""

    ends: Annotated[tuple[int, int], Field(strict=False)]


def test_a_list_that_is_too_short_is_refused(refusal):
    assert refusal(validate, Ends, {"ends": [1]}, "x.yaml").startswith("x.yaml: ends")


def test_a_right_document_becomes_a_frozen_spec():
    cart = validate(Cart, CART, "x")
    assert cart.parts["a"] == Wheel(kind="wheel", size=3)
    with pytest.raises(ValueError, match="frozen"):
        cart.name = "d"


def test_a_schema_is_built_when_a_document_is_read():
    class Axle(Spec):
        width: int = 3

    class Chassis(Spec):
        axle: Axle = Axle.unchecked()

    assert not Axle.__pydantic_complete__
    assert validate(Chassis, {}, "x") == validate(Chassis, {"axle": {"width": 3}}, "x")
    assert Chassis.__pydantic_complete__


def specs(part: type[Spec] = Spec) -> list[type[Spec]]:
    return [each for kind in part.__subclasses__() for each in (kind, *specs(kind))]


def test_what_files_leave_out_passes_the_checks():
    defaults = [field.default for spec in specs() for field in spec.model_fields.values()]
    left_out = [default for default in defaults if isinstance(default, Spec)]
    assert {BytesAllowanceSpec, SearchPart} <= {type(default) for default in left_out}
    for default in left_out:
        assert repr(type(default).model_validate(default.model_dump())) == repr(default)


SHIPPED = sorted((Path(__file__).parents[2] / "src" / "dovetail").rglob("data/**/*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_pass_the_strict_reader_too(path):
    text = path.read_text(encoding="utf-8")
    assert parse_document(text, path.name) == parse_document(text, path.name, ours=True)
