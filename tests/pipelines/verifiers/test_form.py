"""regex, json_schema, instructions: the form of a text, with patterns that can be killed."""

from __future__ import annotations

import time

import pytest

from pipelines import verifiers
from pipelines.base.errors import UserError
from pipelines.verifiers import instructions
from pipelines.verifiers.instructions import FAMILIES


def status(name, completion, answer="", **info):
    return verifiers.verify(name, completion, answer, info).status


def test_regex():
    assert status("regex", " <think>x</think> 7 ", r"<think>.*</think> \d+") == "correct"
    assert status("regex", "x <think>x</think> 7", r"<think>.*</think> \d+") == "incorrect"
    assert status("regex", "so A, I say", pattern="a, i", mode="search", flags="i") == "correct"
    assert status("regex", "x", "(") == "verifier_failed"
    assert status("regex", "x", "x", mode="somewhere") == "verifier_failed"


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"name": "x", "age": 3}', "correct"),
        ('Here:\n```json\n{"name": "x"}\n```', "correct"),
        ('<answer>{"name": "x"}</answer>', "correct"),
        ('{"name": "x", "age": -1}', "incorrect"),
        ('{"name": "x", "more": 1}', "incorrect"),
        ('{"name": "x", "name": "y"}', "unparsable"),
        ('{"name": NaN}', "unparsable"),
        ('{"name": "x"} and more', "unparsable"),
        ("", "unparsable"),
    ],
)
def test_json_schema(text, expected):
    assert status("json_schema", text, schema=SCHEMA) == expected


def test_a_schema_reaches_no_network_and_a_bad_one_is_no_fault_of_the_text():
    began = time.monotonic()
    assert status("json_schema", "1", schema={"$ref": "http://192.0.2.1/schema.json"}) == "verifier_failed"
    assert status("json_schema", "1", schema={"type": "nothing"}) == "verifier_failed"
    assert time.monotonic() - began < 60


FOLLOWED = {
    "keywords:existence": ("one Twofold", {"keywords": ["two"]}, "one tw o"),
    "keywords:frequency": ("a cat, cats", {"keyword": "cat", "frequency": 2}, "a cat, c.t"),
    "keywords:forbidden_words": ("badly", {"forbidden_words": ["bad"]}, "a Bad one"),
    "keywords:letter_frequency": ("aAa", {"letter": "a", "let_frequency": 3, "let_relation": "at least"}, "a"),
    "length_constraints:number_sentences": ("One. Two! Three", {"num_sentences": 3}, "One, two, three."),
    "length_constraints:number_words": ("a b c", {"num_words": 3, "relation": "at least"}, "a b"),
    "length_constraints:number_paragraphs": ("a *** b", {"num_paragraphs": 2}, "a\n***\n\n***\nb"),
    "length_constraints:nth_paragraph_first_word": (
        "x\n\nHello, y", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "hello"}, "Hello\n\nx",
    ),
    "detectable_content:number_placeholders": ("[name] of [place]", {"num_placeholders": 2}, "[name"),
    "detectable_content:postscript": ("x P. S. y", {"postscript_marker": "P.S."}, "x PS: y"),
    "detectable_format:number_bullet_lists": ("* a\n* b", {"num_bullets": 2}, "* a\n* b\n-c"),
    "detectable_format:constrained_response": ("My answer is no.", {}, "My answer is no"),
    "detectable_format:number_highlighted_sections": ("*a* and *a*", {"num_highlights": 2}, "*a* and * *"),
    "detectable_format:multiple_sections": (
        "SECTION 1\nx\nSECTION 2\ny", {"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1",
    ),
    "detectable_format:json_format": ('```json\n{"a": 1}\n```', {}, "{a: 1}"),
    "detectable_format:title": ("<<A title>>\nx", {}, "<< >>"),
    "combination:two_responses": ("a\n******\nb", {}, "a\n******\na"),
    "combination:repeat_prompt": ("Say it. It.", {"prompt_to_repeat": "say it."}, "It. Say it."),
    "startend:end_checker": ("x. The end.", {"end_phrase": "the end."}, "The end. x"),
    "startend:quotation": ('"x"', {}, '"x'),
    "change_case:capital_word_frequency": (
        "GO NOW", {"capital_frequency": 2, "capital_relation": "at least"}, "GO now",
    ),
    "change_case:english_capital": ("ABC 1", {}, "ABc"),
    "change_case:english_lowercase": ("abc 1", {}, "aBc"),
    "punctuation:no_comma": ("a b", {}, "a, b"),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_text_that_follows_and_one_that_does_not(family):
    follows, arguments, breaks = FOLLOWED[family]
    info = {"instruction_id_list": [family], "kwargs": [arguments]}
    assert status("instructions", follows, **info) == "correct"
    assert status("instructions", breaks, **info) == "incorrect"


LIKE_IFEVAL = [
    ("keywords:existence", "concatenate", {"keywords": ["cat"]}, True),
    ("keywords:existence", "a c++ program", {"keywords": ["C++"]}, True),
    ("keywords:frequency", "cat scatter cats", {"keyword": "cat ", "frequency": 4, "relation": "less than"}, True),
    ("keywords:forbidden_words", "concatenate", {"forbidden_words": ["cat"]}, True),
    ("keywords:forbidden_words", "a cat-like thing", {"forbidden_words": ["cat"]}, False),
    ("detectable_format:number_bullet_lists", "*a\n  - b\n** c\n-d", {"num_bullets": 3}, True),
    ("detectable_format:number_highlighted_sections", "**a** *b*", {"num_highlights": 3}, False),
    ("detectable_format:number_highlighted_sections", "*a* **b** *a*", {"num_highlights": 3}, True),
    ("detectable_format:title", "<<a> b>>", {}, True),
    ("detectable_format:multiple_sections", "SECTION1 SECTION 2", {"section_spliter": "SECTION", "num_sections": 2}, True),
    ("detectable_format:constrained_response", "My answer is no. My answer is yes.", {}, True),
    ("detectable_content:postscript", "Bye. P.P.S. Hi", {"postscript_marker": "P.P.S"}, True),
    ("detectable_content:postscript", "pps hi", {"postscript_marker": "P.P.S"}, False),
    ("detectable_content:number_placeholders", "[] [a b]", {"num_placeholders": 2}, True),
    ("length_constraints:number_paragraphs", "***\na *** b\n***", {"num_paragraphs": 2}, True),
    (
        "length_constraints:nth_paragraph_first_word", "\"Well, x\n\ny", {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "Well"},
        True,
    ),
    (
        "change_case:capital_word_frequency", "A STATE-OF-THE-ART U.S. car", {"capital_frequency": 4, "capital_relation": "less than"},
        True,
    ),
]  # fmt: skip


@pytest.mark.parametrize("family, text, arguments, follows", LIKE_IFEVAL)
def test_counted_as_the_released_code_counts(family, text, arguments, follows):
    info = {"instruction_id_list": [family], "kwargs": [arguments]}
    assert (status("instructions", text, **info) == "correct") is follows


@pytest.mark.parametrize("text", ["*", "[", "<<", "* a\n", "***\n", "a. ", "\n\n", '"', "P.S. ", "******"])
def test_families_are_linear(text):
    for family, (_, arguments, _) in FOLLOWED.items():
        began = time.process_time()
        FAMILIES[family](text * 50_000, arguments)
        assert time.process_time() - began < 2, family


def test_instructions_that_are_none():
    for info in ({}, {"instruction_id_list": ["language:response_language"]}, {"instructions": [{"id": "x"}]}):
        with pytest.raises(ValueError):
            instructions.instructions_of(info)
        assert status("instructions", "x", **info) == "verifier_failed"
    assert issubclass(UserError, ValueError)
    half = {"instructions": [{"id": "punctuation:no_comma"}, {"id": "change_case:english_capital"}]}
    assert verifiers.verify("instructions", "a", "", half).score == 0.5
    assert verifiers.verify("instructions", "a", "", half | {"strict": True}).score == 0.0
