"""Questions about one table, answered by an SQL query that is run on sqlite and judged by its rows.

    books(title, pages, town)
    How many have more than 30 pages?      ->   SELECT COUNT(*) FROM books WHERE pages > 30

Questions use plain words; the names of table and columns stand in the schema and differ from problem to problem. The expert of the
demonstrations errs in a share of them (`errors`): its query then has another column, comparison, aggregate or order.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipelines.environments._answered import Part, World, belongs

__all__ = ["World", "problems"]

ROWS = 16
"""Rows of a problem's table."""
DRAWS = 20
"""Tables that are drawn until one tells the query from its siblings."""
TABLES = {
    "people": ("people", "staff"),
    "books": ("books", "items"),
    "shops": ("shops", "stores"),
    "dogs": ("dogs", "pets"),
}
LABELS = ("name", "title", "label")
AMOUNTS = {
    "age": ("age", "years"),
    "price": ("price", "cost"),
    "weight": ("weight", "mass"),
    "score": ("score", "points"),
}
GROUPS = {"town": ("town", "city"), "colour": ("colour", "paint"), "group": ("team", "class")}
VALUES = {
    "town": ("Rome", "Oslo", "Bonn", "Lima"),
    "colour": ("red", "blue", "green", "black"),
    "group": ("A", "B", "C", "D"),
}
SUMMARIES = {"average": "AVG", "total": "SUM", "largest": "MAX", "smallest": "MIN"}
COMPARISONS = {"over": ">", "under": "<", "at least": ">=", "at most": "<="}
VERIFIERS = ("sql",)


class Table(NamedTuple):
    """The schema of a problem: words of the question → names in the schema."""

    word: str
    name: str
    label: str
    amounts: dict[str, str]
    group: str
    group_name: str

    def shown(self) -> str:
        """As the prompt has it."""
        return f"{self.name}({', '.join((self.label, *self.amounts.values(), self.group_name))})"

    def script(self, draw: random.Random) -> str:
        """Makes and fills it; amounts of a column are all different, so that an order is one order."""
        columns = [
            f"{self.label} TEXT",
            *(f"{name} INTEGER" for name in self.amounts.values()),
            f"{self.group_name} TEXT",
        ]
        amounts = [draw.sample(range(10, 100, 3), ROWS) for _ in self.amounts]
        rows = [
            f"('{chr(97 + i)}{i}', {', '.join(str(a[i]) for a in amounts)}, '{draw.choice(VALUES[self.group])}')"
            for i in range(ROWS)
        ]
        return f"CREATE TABLE {self.name} ({', '.join(columns)}); INSERT INTO {self.name} VALUES {', '.join(rows)};"


def _table(draw: random.Random) -> Table:
    word, group = draw.choice(list(TABLES)), draw.choice(list(GROUPS))
    amounts = {a: draw.choice(AMOUNTS[a]) for a in draw.sample(list(AMOUNTS), 2)}
    return Table(word, draw.choice(TABLES[word]), draw.choice(LABELS), amounts, group, draw.choice(GROUPS[group]))


class Query(NamedTuple):
    """What is asked, before it is worded."""

    kind: str
    amount: str
    comparison: str = "over"
    bound: int = 0
    value: str = ""
    summary: str = "average"
    falling: bool = True

    def question(self, table: Table) -> str:
        """In words."""
        most = "largest" if self.falling else "smallest"
        return {
            "count": f"How many {table.word} have {self.amount} {self.comparison} {self.bound}?",
            "list": f"Which {table.word} have {self.group_words(table)} and {self.amount} {self.comparison} {self.bound}?",
            "summary": f"What is the {self.summary} {self.amount} of {table.word} with {self.group_words(table)}?",
            "each": f"What is the {self.summary} {self.amount} for each {table.group}?",
            "top": f"Which of the {table.word} has the {most} {self.amount}?",
        }[self.kind]

    def group_words(self, table: Table) -> str:
        """The condition on the group."""
        return f"{table.group} {self.value}"

    def sql(self, table: Table) -> str:
        """The query."""
        amount = table.amounts[self.amount]
        where = f"{amount} {COMPARISONS[self.comparison]} {self.bound}"
        of_group = f"{table.group_name} = '{self.value}'"
        summary = f"{SUMMARIES[self.summary]}({amount})"
        return {
            "count": f"SELECT COUNT(*) FROM {table.name} WHERE {where}",
            "list": f"SELECT {table.label} FROM {table.name} WHERE {of_group} AND {where}",
            "summary": f"SELECT {summary} FROM {table.name} WHERE {of_group}",
            "each": f"SELECT {table.group_name}, {summary} FROM {table.name} GROUP BY {table.group_name}",
            "top": f"SELECT {table.label} FROM {table.name} ORDER BY {amount} {'DESC' if self.falling else 'ASC'} LIMIT 1",
        }[self.kind]


KINDS = ("count", "list", "summary", "each", "top")


def _query(table: Table, draw: random.Random) -> Query:
    return Query(
        draw.choice(KINDS), draw.choice(list(table.amounts)), draw.choice(list(COMPARISONS)), draw.randrange(19, 80, 3),
        draw.choice(VALUES[table.group]), draw.choice(list(SUMMARIES)), draw.random() < 0.5,
    )  # fmt: skip


def _erring(query: Query, table: Table, draw: random.Random) -> Query:
    """The query with one thing changed that its text shows."""
    other = _query(table, draw)
    changes: dict[str, Any] = {
        "amount": next(a for a in table.amounts if a != query.amount), "comparison": other.comparison,
        "bound": other.bound, "value": other.value, "summary": other.summary, "falling": not query.falling,
    }  # fmt: skip
    for name in draw.sample(list(changes), len(changes)):
        changed = query._replace(**{name: changes[name]})
        if changed.sql(table) != query.sql(table):
            return changed
    return query


def _siblings(query: Query, table: Table) -> set[str]:
    """Queries that are nearly the same: another amount, comparison, summary or order."""
    changes = [query._replace(amount=a) for a in table.amounts] + [query._replace(falling=not query.falling)]
    changes += [query._replace(comparison=c) for c in COMPARISONS] + [query._replace(summary=s) for s in SUMMARIES]
    return {changed.sql(table) for changed in changes} - {query.sql(table)}


def _data(query: Query, table: Table, draw: random.Random) -> str | None:
    """A script whose data tell the query from its siblings and from one that finds nothing; None where none was drawn."""
    for _ in range(DRAWS):
        script = table.script(draw)
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            database.executescript(script)
            rows = sorted(database.execute(query.sql(table)))
            others = [sorted(database.execute(text)) for text in _siblings(query, table)]
        if rows and rows not in others and rows != [(None,)]:
            return script
    return None


def problems(
    size: int, seed: int, *, part: Part = "train", demonstrations: bool = False, errors: float = 0.0
) -> Iterator[dict[str, Any]]:
    """Schemas with questions; a problem is of the part that its query falls into.

    Args:
        size: rows.
        seed: of the problems.
        part: `train` or `test`.
        demonstrations: with an expert's query as the solution, for SFT.
        errors: share of the expert's queries that ask something else.
    """
    draw = random.Random(f"table questions {seed}")
    choices = random.Random(f"table questions {seed} choices")
    yielded = 0
    while yielded < size:
        table = _table(draw)
        query = _query(table, draw)
        gold = query.sql(table)
        script = _data(query, table, draw) if belongs(gold, part) else None
        if script is None:
            continue
        info: dict[str, Any] = {"environment": "table_questions", "schema": script, "kind": query.kind}
        if demonstrations:
            shown = _erring(query, table, choices) if choices.random() < errors else query
            info["solution"] = shown.sql(table)
        prompt = [{"role": "user", "content": f"{table.shown()}\n{query.question(table)}"}]
        yield {"prompt": prompt, "answer": gold, "verifier": "sql", "info": info}
        yielded += 1
