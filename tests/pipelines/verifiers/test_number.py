"""The final number of a completion, as a reader would take it."""

from __future__ import annotations

import json
import time
from fractions import Fraction

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.verifiers import number, verify_here

GSM8K = toys.ROOT.parent / "shared" / "data" / "gsm8k"


CORRECT = [
    ("\\boxed{42\\,\\text{km}/\\text{h}}", "42"),
    ("\\boxed{\\$42/\\text{hour}}", "42"),
    ("\\boxed{42\\text{ N}\\cdot\\text{m}}", "42"),
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

MARKS = ["#### {}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}."]

SAME = {
    "1234567": [
        "1'234'567", "1.234.567", "1,\\!234,\\!567", "1{,}234{,}567", "\uff11\uff12\uff13\uff14\uff15\uff16\uff17",
        "\u0661\u0662\u0663\u0664\u0665\u0666\u0667", "1\u200b234\u200b567", "1.234567 \u00d7 10\u2076", "1 234 567,00",
    ],
    "7.5": [
        "7\u00bd", "7 and 1/2", "15\u20442", "\\sfrac{15}{2}", "{15 \\over 2}", "\uff17\uff0e\uff15",
        "7.5 km/h", "7.5 \\text{ m/s}^2", "$7.50/hour",
        "7.5 \\frac{\\text{m}}{\\text{s}}", "\\textcolor{red}{7.5}", "\\boldsymbol{7.5}", "x = 7.5 (since 15 = 7.5 + 7.5)",
    ],
    "-5": ["\u20135", "- 5", "x = - 5", "negative 5", "minus 5", "- $5", "\u2212\u200a5"],
    "0.5": ["50\uff05", "50 per cent", "\u00bd", "\\frac{1}2", "\\frac1{2}", "5*10**-1", "5\u00b710\u207b\u00b9"],
    "7": ["7\u2081\u2080", "7_{10}", "_7_", "__7__ apples", "_7 apples_", "7 _apples_", "7 (not 8)", "7, not 8", "7 (or 7.0)",
          "7 or 14/2", "<7>"],
    "1800000": ["18 lakh", "1.8 Million"],
    "84": ["7 dozen", "7\\text{ dozen}"],
    "5000000": ["5 million", "5\\text{ million}", "$5 million"],
}  # fmt: skip
"""Value -> forms of it, in every mark."""

OTHER = {
    "5": [
        "not 5", "neither 5 nor 6", "other than 5", "\u20135", "- 5", "negative 5", "\\pm 5", "-(5)", "5x",
        "5i", "5\\pi", "5\u221a3", "5k", "5_6", "5 \\sqrt{3}",
        "5\\_6", "5 _6", "5_ 6", "5__6", "5_{\\text{6}}", "5_x", "5_{n}", "5_a", "5_000", "5_6_7", "5\u2086", "$5$_6",
        "x > 5", "3 < 5 > 4", "<5> or <6>", "x \\ge 5", "x \\neq 5", "(5, \\infty)", "\\frac{5}{x}", "\\sin 5", "f(5)", "5 million",
        "5 squared", "5 plus 0.5", "5+5", "5-5",
        "5 (or 6)", "6 or possibly 5", "5, maybe 6", "x=6 \\text{ or } x=5", "5.0.1", "2024-05-05", "\u221b5", "\\overline{5}", "1\u200b5",
    ],
    "1": ["1\u00bd"],
    "18": [
        "$18M", "18B", "18 lakh", "18 dozen", "18 Million", "18 or any number", "18 or more", "18 tenths", "18 bn",
        "18 \\notin S", "18 \\det A",        "18 + sqrt(2)", "18 + c", "18 \\partial x", "\\neg 18",
    ],
    "10": ["10\u00b2", "10\u207b\u00b3"],
    "1.2": ["(1,2)", "[1,2]", "\\{1,2\\}", "1.2.3"],
    "500": ["5%"],
    "50": ["0.5%"],
    "8": ["2^3^2"],
}  # fmt: skip
"""Value -> what contains it and is something else, in every mark."""


@pytest.mark.parametrize("form", MARKS)
@pytest.mark.parametrize("value, text", [(value, text) for value in SAME for text in SAME[value]])
def test_forms_of_a_value_in_every_mark(form, value, text):
    assert verify_here("number", form.format(text), value, {}).status == "correct"


@pytest.mark.parametrize("form", MARKS)
@pytest.mark.parametrize("value, text", [(value, text) for value in OTHER for text in OTHER[value]])
def test_what_contains_a_value_is_not_it(form, value, text):
    assert verify_here("number", form.format(text), value, {}).correct is False


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{3} \\quad \\boxed{5}", "\\boxed{3}, or possibly \\boxed{5}", "\\boxed{5} or 6", "6 or \\boxed{5}", "#### 5\nor 6",
        "#### 3\n#### 4\n#### 5", "<answer>3</answer><answer>4</answer><answer>5</answer>", "<answer>5</answer> or <answer>6</answer>",
    ],
)  # fmt: skip
def test_several_marks_side_by_side_are_alternatives(text):
    assert verify_here("number", text, "5", {}).correct is False


@pytest.mark.parametrize(
    "text, value",
    [
        ("It's 7, not 8", "7"), ("7 rather than 8", "7"), ("The answer is not 8 but 7", "7"), ("7 is wrong, it is 8", "8"),
        ("The answer is 8. Wait, that is wrong. It is 7.", "7"), ("The answer is 8.\nActually, it's 7.", "7"),
        ("#### Answer\n7", "7"), ("#### Step 2\nThe answer is 7", "7"), ("so 6 \u00d7 4 = 24, of which 100% are his: A: 24", "24"),
        ("The answer as a percentage: 2 / 8 * 200% = 50%\nA: 50", "50"), ("_7_", "7"), ("So we get 1 234 567", "1234567"),
    ],
)  # fmt: skip
def test_the_last_statement_that_is_not_taken_back(text, value):
    assert verify_here("number", text, value, {}).correct is True


@pytest.mark.parametrize(
    "text", ["It is not 5", "5 is not the answer", "It can't be 5.", "\\boxed{\\text{not } 5}", "The answer is 5? No."]
)
def test_a_number_that_is_denied(text):
    assert verify_here("number", text, "5", {}).correct is False


@pytest.mark.parametrize(
    "unit",
    [
        ",",
        ", ",
        "or ",
        "...",
        "1,",
        "1+",
        "\u00bd",
        "(",
        "not 1 ",
        "<answer>",
        "\\boxed{1} ",
        "#### ",
        "1 cm or ",
        "1 ",
    ],
)
@pytest.mark.parametrize("form", ["3 {}x 4", "The answer is 3 {}x 4", "\\boxed{{3 {}x 4}}", "{}"])
def test_linear(unit, form):
    """Twenty-seven commas between two numbers once took two minutes."""
    began = time.process_time()
    verify_here("number", form.format(unit * (20_000 // len(unit))), "4", {})
    assert time.process_time() - began < 3


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


@pytest.mark.slow
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
