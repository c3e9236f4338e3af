"""The frame of a page, and the pieces that pages share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

STYLE = """
:root{--ink:#1b1f24;--muted:#5b6570;--line:#e3e7eb;--paper:#fff;--card:#f7f9fb;--good:#0a7d4f;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--muted:#a0a8b2;--line:#343a42;--paper:#14171b;--card:#1c2026;--good:#4cc38a;
--bad:#ff8a80}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1060px;padding:32px 24px 64px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 10px}h3{font-size:15px;margin:20px 0 6px}
p{margin:6px 0}.muted,.note{color:var(--muted)}.note{font-size:13px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 10px;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th{font-weight:600;color:var(--muted);white-space:nowrap}td.number,th.number{text-align:right}td.number,td.words{overflow-wrap:normal}
.scroll{overflow-x:auto}.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(330px,100%),1fr));gap:16px}
.grid2>*{min-width:0}
@media print{.scroll{overflow:visible}td.words{overflow-wrap:anywhere}.scroll svg{min-width:0!important}th{white-space:normal}}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.verdict{font-size:17px}.better{color:var(--good);font-weight:600}.worse{color:var(--bad);font-weight:600}
svg{width:100%;height:auto;display:block}svg text{fill:var(--muted);font-size:12px}svg .grid{stroke:var(--line)}
svg .zero{stroke:var(--muted);stroke-dasharray:3 3}svg .box{fill:var(--card);stroke:var(--line)}svg .box.bad{stroke:var(--bad)}
svg .edge{stroke:var(--muted);fill:none}svg text.head{fill:var(--ink);font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:4px 0 12px;font-size:14px}
.dot{display:inline-block;width:11px;height:11px;border-radius:50%;margin-right:6px}
details{border-top:1px solid var(--line);padding:8px 0}summary{cursor:pointer;overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0;padding:8px 10px;background:var(--paper);border:1px solid var(--line);
border-radius:6px;font-size:13px}
"""


LONGEST_WORD = 34
"""Characters of a word that a table never breaks: the name of an artifact or a field."""


def page(title: str, body: Sequence[str], style: str = "") -> str:
    """A whole document: no script may run in it and nothing may be loaded, whatever the texts hold.

    Args:
        style: CSS of this page's own.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def visible(value: object) -> str:
    """Text in which characters that steer a terminal, reorder a line or are no text at all are replaced.

    >>> visible("a\\x1b[2Jb\\u202ec")
    'a�[2Jb�c'
    """
    return re.sub(r"[^\t\n\r\x20-\x7e\xa0-\U0010ffff]|[\ud800-\udfff\u202a-\u202e\u2066-\u2069]", "�", str(value))


def text(value: object) -> str:
    """Escaped visible text.

    >>> text("<b> & 'x'")
    '&lt;b&gt; &amp; &#x27;x&#x27;'
    """
    return escape(visible(value))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right_aligned: Sequence[int] = ()) -> str:
    """A table of escaped cells.

    Args:
        right_aligned: columns that are aligned to the right.
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        marks = [' class="number"' if i in right_aligned else _words(cell) for i, cell in enumerate(row)]
        return "".join(f"<{tag}{mark}>{text(cell)}</{tag}>" for mark, cell in zip(marks, row, strict=True))

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", header)}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def _words(cell: str) -> str:
    """The class of a cell whose words are short enough to stay whole; longer ones break anywhere, so that pages keep their width.

    >>> _words("model"), _words("x" * 35)
    (' class="words"', '')
    """
    return ' class="words"' if max(map(len, cell.split()), default=0) <= LONGEST_WORD else ""


def legend(names: Sequence[tuple[str, str]]) -> str:
    """Coloured names: (name, colour)."""
    return (
        '<div class="legend">'
        + "".join(
            f'<span><span class="dot" style="background:{colour}"></span>{text(name)}</span>' for name, colour in names
        )
        + "</div>"
    )
