"""SQL by what it returns: 1, 0.1 or 0, and nothing but reading."""

from __future__ import annotations

import pytest

from pipelines import verifiers

SCHEMA = """
create table t(a integer, b real, c text);
insert into t values (1, 0.1, 'x'), (2, 0.30000000000000004, 'y'), (2, null, 'z'), (3, 1e300, 'x');
"""


def score(query, gold, schema=SCHEMA, **info):
    verdict = verifiers.verify("sql", query, gold, {"schema": schema, **info})
    return verdict.score


@pytest.mark.parametrize(
    "query, gold, expected",
    [
        ("SELECT a FROM t", "SELECT a FROM t", 1.0),
        ("```sql\nselect a from t order by a desc;\n```", "SELECT a FROM t", 1.0),
        ("SELECT DISTINCT a FROM t", "SELECT a FROM t", 0.1),
        ("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a", 0.1),
        ("SELECT a FROM t ORDER BY a", "SELECT a FROM (SELECT a FROM t ORDER BY a)", 1.0),
        ("SELECT 0.3", "SELECT b FROM t WHERE a = 2 AND c = 'y'", 1.0),
        ("SELECT 0", "SELECT b FROM t WHERE c = 'z'", 0.1),
        ("SELECT 1.0", "SELECT 1", 1.0),
        ("SELECT '1'", "SELECT 1", 0.1),
        ("SELECT 1000000008.0", "SELECT 1000000007", 0.1),
        ("SELECT 1000000007.0", "SELECT 1000000007", 1.0),
        ("SELECT 1000000007.0 UNION ALL SELECT 1000000009.0", "SELECT 1000000009 UNION ALL SELECT 1000000007", 1.0),
        ("SELECT 1e18", "SELECT 1000000000000000001", 0.1),
        ("SELECT a, b FROM t", "SELECT a FROM t", 0.1),
        ("SELECT a FROM t WHERE a > 9", "SELECT a FROM t WHERE a < 0", 1.0),
        ("SELECT nothing FROM t", "SELECT a FROM t", 0.0),
        ("I do not know", "SELECT a FROM t", 0.0),
        ("", "SELECT a FROM t", 0.0),
    ],
)
def test_scores(query, gold, expected):
    assert score(query, gold) == expected


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE t", "DELETE FROM t", "UPDATE t SET a = 1", "INSERT INTO t VALUES (1, 1, 1)", "PRAGMA table_info(t)",
        "ATTACH '/tmp/x' AS x", "SELECT a FROM t; DROP TABLE t", "CREATE TABLE u(a)", "VACUUM INTO '/tmp/x'",
        "SELECT load_extension('x')", "BEGIN", "EXPLAIN DELETE FROM t", "SELECT readfile('/etc/passwd')",
        "SELECT * FROM pragma_database_list", "WITH x AS (SELECT 1) DELETE FROM t",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
        "SELECT t1.a FROM t t1, t t2, t t3, t t4, t t5, t t6, t t7, t t8", "SELECT zeroblob(1000000000)",
        "SELECT hex(randomblob(9999999))",
    ],
)  # fmt: skip
def test_only_reading_and_not_for_long(query):
    assert score(query, "SELECT a FROM t") in (0.0, 0.1)


def test_a_bad_gold_is_no_fault_of_the_query():
    assert score("SELECT 1", "SELECT nothing FROM t") is None
    assert score("SELECT 1", "SELECT 1", schema="create tabel") is None
    assert score("SELECT 1", "SELECT 1", schema="") is None


def test_order_counts_where_the_row_says_so():
    assert score("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t", ordered=True) == 0.1
