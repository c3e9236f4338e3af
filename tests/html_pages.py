"""Holds a page to its promises: well formed, nothing runs in it, nothing is loaded."""

from __future__ import annotations

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
    assert not names & {"script", "img", "iframe", "object", "embed", "link", "base", "form"}
    for _, attributes in tree.tags:
        assert not [a for a in attributes if a.startswith("on") or a in ("src", "href", "action", "xlink:href")]
    assert not re.search(r"url\(|@import|https?://", page)
    policy = next(a["content"] for tag, a in tree.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    return tree
