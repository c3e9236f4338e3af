"""Every page drawn by a real browser at three widths, dark and light; skipped where there is no Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import page_bodies
import pytest
from html_pages import check

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (390, 1280, 2560)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=20000", "--timeout=90000", "--dump-dom",
]  # fmt: skip
SCHEMES = {"light": [], "dark": ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]}
PROBE = r"""
(() => {
  const colour = (text) => { const v = text.match(/[\d.]+/g).map(Number); return v.length > 3 ? v : [...v, 1]; };
  const over = (top, under) => top.slice(0, 3).map((v, i) => v * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const layer = colour(getComputedStyle(at).backgroundColor);
      if (layer[3] > 0) layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const look = () => {
    const root = document.documentElement;
    const told = { overflow: root.scrollWidth - root.clientWidth, broken: [], faint: [], width: innerWidth };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || !element.checkVisibility() || /^(SCRIPT|STYLE|TITLE|OPTION)$/i.test(element.tagName)) continue;
      const drawing = element instanceof SVGElement, style = getComputedStyle(element), under = behind(element);
      const [a, b] = [light(over(colour(drawing ? style.fill : style.color), under)), light(under)].sort((x, y) => y - x);
      const contrast = (a + 0.05) / (b + 0.05);
      if (contrast < 4.5) told.faint.push(`${element.tagName} ${node.data.slice(0, 40)} ${contrast.toFixed(2)}`);
      if (drawing || element.closest("pre,.text,.long")) continue;
      for (const word of node.data.matchAll(/[\p{L}\p{N}_.]+/gu)) {
        range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
        const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (tops.size > 1 && word[0].length <= 34) told.broken.push(word[0]);
      }
    }
    told.paper = light(behind(document.body));
    told.height = root.scrollHeight;
    told.elements = document.getElementsByTagName("*").length;
    told.shown = document.querySelectorAll(".item:not([hidden])").length;
    return told;
  };
  const filtered = (name, value) => {
    const field = document.querySelector(`[name=${name}]`);
    if (!field) return "";
    field.value = value;
    field.dispatchEvent(new Event(name === "search" ? "input" : "change"));
    return new Promise((done) => setTimeout(() => done(document.querySelector(".tools output").textContent), 400));
  };
  addEventListener("load", async () => {
    const told = look();
    for (const item of [...document.querySelectorAll("details")].filter((each) => each.checkVisibility()).slice(-60)) item.open = true;
    const words = document.querySelector("[data-tokens]")?.textContent;
    await new Promise((done) => setTimeout(done, 200));
    told.opened = look();
    told.coloured = document.querySelectorAll(".text span[title]").length;
    const tokens = [...document.querySelectorAll(".text span[title]")].slice(0, 40);
    const paints = () => tokens.map((each) => getComputedStyle(each).backgroundColor);
    const before = paints();
    await filtered("colour", "mismatch");
    told.apart = look();
    told.repainted = paints().filter((paint, i) => paint !== before[i]).length;
    await filtered("colour", "");
    told.whole = !words || document.body.textContent.includes(words);
    told.flipped = await filtered("verdict", "flipped");
    await filtered("verdict", "");
    told.searched = await filtered("search", "Question 77:");
    parent.postMessage(JSON.stringify(told), "*");
  });
})();
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return folder, page_bodies.every(folder / "rlvr")


@pytest.fixture(scope="module", params=SCHEMES)
def looks(request, pages):
    """(page, width) → what the probe saw, of one browser with every page in a frame of every width."""
    folder, bodies = pages
    frames = [(name, width) for name in bodies for width in WIDTHS]
    for name, page in bodies.items():
        (probed,) = re.findall(r"<script>.*?</script>", page, re.DOTALL)
        free = re.sub(r"<meta http-equiv.*?>", "", page)
        (folder / f"{name}.html").write_text(free.replace(probed, f"{probed}<script>{PROBE}</script>"))
    drawn = "".join(f'<iframe src="{name}.html" width="{width}" height="900"></iframe>' for name, width in frames)
    script = """const told = {}; addEventListener("message", (event) => {
      const place = [...document.querySelectorAll("iframe")].findIndex((frame) => frame.contentWindow === event.source);
      told[place] = JSON.parse(event.data); document.querySelector("pre").textContent = JSON.stringify(told); });"""
    harness = folder / "harness.html"
    harness.write_text(
        f'<meta charset="utf-8"><meta name="color-scheme" content="light dark"><script>{script}</script><pre></pre>{drawn}'
    )
    profile = folder / f"profile-{request.param}"
    command = [str(BROWSER), *FLAGS, *SCHEMES[request.param], f"--user-data-dir={profile}", f"file://{harness}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    told = json.loads(html.unescape(re.findall(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[0]))
    assert all((about["paper"] < 0.1) == (request.param == "dark") for about in told.values())
    return {frames[int(place)]: about for place, about in told.items()}


def test_every_page_fits_is_whole_and_can_be_read(looks):
    assert len(looks) == 5 * len(WIDTHS) and {about["width"] for about in looks.values()} == set(WIDTHS)
    for place, about in looks.items():
        for state in (about, about["opened"], about["apart"]):
            assert state["overflow"] <= 0 and not state["broken"] and not state["faint"], (place, state)


def test_a_report_of_500_questions_can_be_used(looks):
    """Fifty of each part are drawn, and filters leave what they say."""
    for width in WIDTHS:
        about = looks["report", width]
        assert about["shown"] <= 50 + 50 + 6 and about["height"] < 20_000 and about["elements"] < 60_000, about
        assert about["coloured"] > 1000 and about["whole"], "tokens get their colours when a rollout is opened"
        assert about["repainted"] == 40, "by mismatch they have others"
        assert about["searched"].startswith("1 of") and 100 < int(about["flipped"].split()[0]) < 400


def test_the_pages_keep_their_promises_and_their_script_runs(pages):
    folder, bodies = pages
    for page in bodies.values():
        check(page)
    (folder / "whole.html").write_text(bodies["report"])
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'whole'}", f"file://{folder / 'whole.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "<output>1010 of 1010</output>" in done.stdout, "the policy lets it run"
