"""One spelling for every document, and a reader that takes nothing for granted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.canonical_json import compact, parse_object, pretty
from holdfast.errors import ManifestFormatError

documents = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def test_compact_is_sorted_without_spaces_and_in_utf8() -> None:
    assert compact({"b": [1, None], "a": {"z": "ü", "y": True}}) == '{"a":{"y":true,"z":"ü"},"b":[1,null]}'.encode()


def test_pretty_is_sorted_with_two_spaces_and_a_final_newline() -> None:
    assert pretty({"b": [1], "a": "ü"}) == '{\n  "a": "ü",\n  "b": [\n    1\n  ]\n}\n'.encode()


@given(documents)
def test_both_spellings_say_the_same(document: dict[str, Any]) -> None:
    for data in (compact(document), pretty(document)):
        assert parse_object(data, "document") == document
        assert compact(parse_object(data, "document")) == compact(document)


@given(documents, st.randoms())
def test_order_of_keys_does_not_reach_the_bytes(document: dict[str, Any], random: Any) -> None:
    items = list(document.items())
    random.shuffle(items)
    assert compact(dict(items)) == compact(document)
    assert pretty(dict(items)) == pretty(document)


def test_text_is_parsed_like_bytes() -> None:
    assert parse_object('{"a": "ü"}', "document") == parse_object('{"a": "ü"}'.encode(), "document") == {"a": "ü"}


def test_integers_keep_every_digit() -> None:
    assert parse_object(b'{"a": 18446744073709551615, "b": -9223372036854775808}', "d") == {
        "a": 2**64 - 1,
        "b": -(2**63),
    }


@pytest.mark.parametrize("escape", ["\\ud83d\\ude00", "\\u00fc", "\\\\ud800"])
def test_escapes_that_spell_whole_characters_are_read(escape: str) -> None:
    text = f'{{"a": "{escape}"}}'
    assert parse_object(text, "document") == json.loads(text)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b'{"a": "\\ud800"}', "document is not JSON: .*surrogates not allowed"),
        (b'{"\\udfff": 1}', "document is not JSON: .*surrogates not allowed"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "document is not JSON: duplicate key 'c'"),
        (b'{"a": 1, "b": 2, "b": 3, "a": 4}', "duplicate key 'b'"),
        (b'{"a": NaN}', "document is not JSON: NaN is not a JSON number"),
        (b'{"a": [Infinity]}', "Infinity is not a JSON number"),
        (b'{"a": -1e400}', "-1e400 is not a JSON number"),
        (b'{"a": 1} x', "document is not JSON: Extra data at line 1, column 10"),
        (b'{\n"a": }', "Expecting value at line 2, column 6"),
        (b'\xef\xbb\xbf{"a": 1}', "document is not JSON"),
        (b'{"a": "\xc3"}', r"document is not UTF-8 text \(byte 7\)"),
        (b'"text"', "document is a JSON str, expected an object"),
        (b"7", "document is a JSON int, expected an object"),
    ],
)
def test_anything_but_a_clean_object_is_refused_with_its_place(data: bytes, complaint: str) -> None:
    with pytest.raises(ManifestFormatError, match=complaint):
        parse_object(data, "document")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_have_are_never_written(number: float) -> None:
    for write in (compact, pretty):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write({"a": [number]})
