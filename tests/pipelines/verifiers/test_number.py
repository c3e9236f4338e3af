"""The final number of a completion, as a reader would take it."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.verifiers import number, verify_here

GSM8K = toys.ROOT.parent / "shared" / "data" / "gsm8k"


CORRECT = [
    ("3/2", "1.5"),
    ("\\boxed{\\frac{3}{2}}", "1.5"),
    ("1.5e3", "1500"),
    ("1.5 \xd7 10^3", "1500"),
    ("$1.5 \\times 10^{3}$", "1500"),
    ("\\boxed{10^3}", "1000"),
    ("2^5", "32"),
    ("\u22125", "-5"),
    ("-5", "-5"),
    ("+5", "5"),
    ("50%", "50"),
    ("50%", "0.5"),
    ("50\\%", "0.5"),
    ("1 234 567", "1234567"),
    ("1\u2009234\u2009567", "1234567"),
    ("1\u202f234", "1234"),
    ("1\\,234", "1234"),
    ("1{,}234", "1234"),
    ("1,234", "1234"),
    ("3,5", "3.5"),
    ("1.234,56", "1234.56"),
    ("0,5", "0.5"),
    ("\\boxed{18 \\text{ dollars}}", "18"),
    ("\\boxed{\\$18}", "18"),
    ("$18", "18"),
    ("#### 18 (because 3+4 is 7)", "18"),
    ("x = 18", "18"),
    ("3 + 4 = 7", "7"),
    ("so she has 3 apples and 4 pears, 7 fruits in all.", "7"),
    ("The answer is 7 because 3+4=7", "7"),
    ("The answer is 7.", "7"),
    ("The final answer is: $7$", "7"),
    ("1 1/2", "1.5"),
    ("\\boxed{1\\frac{1}{2}}", "1.5"),
    ("\\boxed{-\\frac{3}{2}}", "-1.5"),
    ("7.", "7"),
    ("7.0", "7"),
    ("007", "7"),
    ("<answer>7</answer>", "7"),
    ("<answer> 7 </answer> hmm 8", "7"),
    ("<answer>7", "7"),
    ("12/4", "3"),
    ("12 / 4 = 3", "3"),
    ("7 m^2", "7"),
    ("\\boxed{7\\text{ m}^2}", "7"),
    ("7 cm2", "7"),
    ("#### -12", "-12"),
    ("####-12", "-12"),
    ("$-12", "-12"),
    ("-$12", "-12"),
    ("\\boxed{\\boxed{7}}", "7"),
    ("\\boxed{\\text{7}}", "7"),
    ("\\boxed {7}", "7"),
    ("\\boxed{x=7}", "7"),
    ("The answer is 12,000 dollars", "12000"),
    ("\\boxed{12,000}", "12000"),
    ("It is 3. Or maybe 4", "4"),
    ("answer: 18 dollars per day", "18"),
    ("3 1/2 hours", "3.5"),
    ("#### 18.", "18"),
    ("**18**", "18"),
    ("\\boxed{**18**}", "18"),
    ("-.5", "-0.5"),
    ("\\boxed{.5}", "0.5"),
    ("\u2248 7", "7"),
    ("\\boxed{90^\\circ}", "90"),
    ("90\xb0", "90"),
    ("5 x 10^3", "5000"),
    ("\\boxed{5\\times10^3}", "5000"),
    ("5e-3", "0.005"),
]

INCORRECT = [
    ("\\boxed{\\frac{3}{2}}", "2"),
    ("3 or 4", "4"),
    ("3, 4 or 5", "5"),
    ("#### 3-5", "5"),
    ("between 3 and 5", "5"),
    ("from 3 to 5", "5"),
    ("10^3", "3"),
    ("2^5", "5"),
    ("\u22125", "5"),
    ("1,234", "234"),
    ("3,5", "5"),
    ("\\boxed{3, 4}", "4"),
    ("\\boxed{3} or \\boxed{4}", "4"),
    ("the answer is 3 or 4", "3"),
    ("the answer is 3 or 4", "4"),
    ("\\sqrt{16}", "16"),
    ("\\boxed{\\sqrt{2}}", "2"),
    ("12/4", "4"),
    ("12 \xf7 4", "4"),
    ("5!", "5"),
    ("3*4", "4"),
    ("\\boxed{3 \\cdot 4}", "4"),
    ("12:30", "30"),
    ("1e400000", "1"),
    ("10^{10^{10}}", "10"),
    ("\\boxed{7", "7"),
    ("7 \xb1 1", "1"),
    ("2-3", "3"),
    ("2\u20133", "3"),
    ("5 - 3", "3"),
    ("\\boxed{\\{3,4\\}}", "4"),
    ("(3, 4)", "4"),
    ("\\boxed{(3,4)}", "4"),
    ("one", "1"),
    ("", "1"),
    ("1/0", "1"),
    ("12,34,567", "1234567"),
    ("0.1+0.2", "0.2"),
    ("1_000", "1000"),
    ("3 to 4", "4"),
    ("18 dollars and 50 cents", "50"),
]
FORMS = ["{}", "#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "so it is {}."]


@pytest.mark.parametrize("completion, answer", CORRECT)
def test_correct(completion, answer):
    assert verify_here("number", completion, answer, {}).status == "correct"


@pytest.mark.parametrize("completion, answer", INCORRECT)
def test_not_correct(completion, answer):
    assert verify_here("number", completion, answer, {}).status in ("incorrect", "unparsable")


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=1000), st.sampled_from(FORMS))
def test_every_fraction_is_itself(value, form):
    text = form.format(value)
    assert number.final_number(text) == value
    assert Fraction(number.extract_answer(text)) == value


@given(st.text(max_size=300))
def test_never_raises(text):
    assert verify_here("number", text, "7", {}).status in ("correct", "incorrect", "unparsable")


def test_agrees_with_gsm8k():
    if not GSM8K.is_dir():
        pytest.skip(f"GSM8K is not at {GSM8K}; it is not part of the repository")
    rows = [
        json.loads(line) for name in ("train", "test") for line in (GSM8K / f"{name}.jsonl").read_text().splitlines()
    ]
    for row in rows:
        gold = row["answer"].rpartition("####")[2].strip()
        for text in (row["answer"], f"The answer is {gold}.", f"\\boxed{{{gold}}}"):
            assert verify_here("number", text, gold.replace(",", ""), {}).correct, text[-80:]
            assert not verify_here("number", text, gold.replace(",", "") + "1", {}).correct
    assert len(rows) == 8792
