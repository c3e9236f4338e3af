"use strict";
// Filters, search, keys and colours of tokens of the report. Without it every item is on the page and can be read.
(() => {
  const tools = document.querySelector(".tools");
  if (!tools) return;
  const PAGE = 50;
  const groups = [...document.querySelectorAll(".group")].map((group) => ({
    group, items: [...group.querySelectorAll(".item")], more: group.querySelector(".more"), limit: PAGE,
  }));
  const items = groups.flatMap((each) => each.items);
  const field = (name) => tools.querySelector(`[name=${name}]`);
  const search = field("search"), count = tools.querySelector("output");
  const lengths = items.map((item) => Number(item.dataset.length)).sort((a, b) => a - b);
  const third = (n) => lengths[Math.floor((lengths.length * n) / 3)];
  const fits = {
    verdict: (item, wanted) => item.dataset.verdict.split(" ").includes(wanted),
    stage: (item, wanted) => item.dataset.stage === wanted,
    length: (item, wanted) => (wanted === "short" ? item.dataset.length <= third(1) : item.dataset.length >= third(2)),
  };
  const draw = () => {
    const words = search.value.toLowerCase();
    const chosen = Object.keys(fits).filter((name) => field(name).value);
    let matching = 0;
    for (const each of groups) {
      let here = 0;
      for (const item of each.items) {
        const fit = chosen.every((name) => fits[name](item, field(name).value)) && (!words || item.textContent.toLowerCase().includes(words));
        here += fit;
        item.hidden = !fit || here > each.limit;
      }
      matching += here;
      each.group.hidden = !here;
      if (each.more) {
        each.more.hidden = here <= each.limit;
        each.more.textContent = `Show ${Math.min(PAGE, here - each.limit)} more of ${here}`;
      }
    }
    count.textContent = `${matching} of ${items.length}`;
  };
  const repaint = () => { document.body.dataset.colour = field("colour")?.value ?? ""; };
  const restart = () => { for (const each of groups) each.limit = PAGE; draw(); };
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(restart, 120); });
  for (const name of Object.keys(fits)) field(name).addEventListener("change", restart);
  field("clear").addEventListener("click", () => { for (const each of tools.querySelectorAll("input,select")) each.value = ""; repaint(); restart(); });
  field("colour")?.addEventListener("change", repaint);
  for (const each of groups) if (each.more) each.more.addEventListener("click", () => { each.limit += PAGE; draw(); });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "Escape" && typing) document.activeElement.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    if (event.key !== "j" && event.key !== "k") return;
    const shown = items.filter((item) => !item.hidden);
    const next = shown[Math.max(0, shown.indexOf(document.activeElement.closest(".item")) + (event.key === "j" ? 1 : -1))];
    if (next) next.querySelector("summary").focus();
  });
  const shade = (value, largest, above, below) =>
    value && largest ? `rgba(${value > 0 ? above : below},${(0.45 * Math.abs(value)) / largest})` : "transparent";
  const known = (value) => value !== null && value !== undefined;
  const colour = (text) => {
    const letters = Array.from(text.textContent);
    let at = 0;
    text.replaceChildren(...JSON.parse(text.dataset.tokens).map(([length, advantage, mismatch]) => {
      const token = document.createElement("span");
      token.textContent = letters.slice(at, (at += length)).join("");
      token.style.setProperty("--a", shade(advantage, Number(tools.dataset.largest), "26,127,55", "207,34,46"));
      token.style.setProperty("--m", shade(mismatch, Number(tools.dataset.mismatch), "0,114,178", "213,94,0"));
      if (known(advantage)) token.title = `advantage ${advantage}` + (known(mismatch) ? `, mismatch ${mismatch}` : "");
      return token;
    }));
    for (const name of ["data-tokens", "style", "title"]) text.removeAttribute(name);
  };
  document.addEventListener("toggle", (event) => event.target.querySelectorAll("[data-tokens]").forEach(colour), true);
  tools.hidden = false;
  draw();
})();
