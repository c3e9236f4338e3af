"""Holds a page to its promises: well formed, nothing runs in it but its own script, nothing is loaded."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Tree(HTMLParser):
    """Checks that tags nest, and remembers them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        self.words.append(data)


def check(page: str) -> Tree:
    """Parse a page and hold it to the promises."""
    tree = Tree()
    tree.feed(page)
    tree.close()
    assert tree.open == []
    names = {tag for tag, _ in tree.tags}
    assert not names & {"iframe", "object", "embed", "link", "base", "form"}
    for tag, attributes in tree.tags:
        assert not [a for a in attributes if a.startswith("on") or a in ("action", "xlink:href", "srcset")]
        source = attributes.get("src", "")
        assert re.fullmatch(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=]+" if tag == "img" else "", source), source
        address = attributes.get("href") or "#"
        assert address.startswith(("#", "http://", "https://") if tag == "a" else "#"), address
    assert not re.search(r"url\(|@import", page)
    assert not re.search(r"https?://", re.sub(r'<a href="http[^"]*"', "", page))
    policy = next(a["content"] for tag, a in tree.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy, "the page's own script runs and no other"
    return tree
