"""The page's script: filters, sorting, and a long table's next rows. Without it the page shows the first results in their order."""

SCRIPT = """
"use strict";
(() => {
  const table = document.getElementById("queries");
  if (!table) return;
  const body = table.tBodies[0], rows = Array.from(body.rows), form = document.getElementById("filters");
  const cards = new Map(Array.from(document.querySelectorAll("[data-i]"), c => [c.dataset.i, c]));
  const searches = new Map(Array.from(document.querySelectorAll("[data-j]"), c => [c.dataset.j, c]));
  const status = document.getElementById("shown"), none = document.getElementById("none"), sorter = document.getElementById("sorter");
  const data = rows.map((row, k) => ({
    row, k, card: cards.get(row.dataset.q), search: searches.get(row.dataset.q), network: row.dataset.n, verdict: row.dataset.v,
    text: row.textContent.toLowerCase(),
  }));
  const more = document.getElementById("more"), step = Number(table.dataset.step);
  let order = data, limit = step;
  form.hidden = false;

  const apply = () => {
    const network = form.elements.network ? form.elements.network.value : "";
    const verdicts = new Set(Array.from(form.querySelectorAll("[name=verdict]:checked"), b => b.value));
    const words = form.elements.text.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let count = 0, pictures = 0;
    for (const d of order) {
      const yes = (!network || d.network === network) && verdicts.has(d.verdict) && words.every(w => d.text.includes(w));
      const seen = yes && count < limit;
      if (d.row.hidden === seen) d.row.hidden = !seen;
      if (d.card) { d.card.hidden = !yes; pictures += yes; }
      if (d.search) d.search.hidden = !yes;
      count += yes;
    }
    status.textContent = count.toLocaleString("en") + " of " + data.length.toLocaleString("en") + " queries";
    none.hidden = count > 0;
    more.hidden = count <= limit;
    more.querySelector("span").textContent = "The first " + limit.toLocaleString("en") + " are listed.";
    const empty = document.getElementById("nocards");
    if (empty) empty.hidden = pictures > 0;
  };

  const collator = new Intl.Collator("en", {numeric: true, sensitivity: "base"});
  const heads = Array.from(table.tHead.rows[0].cells);
  const sort = (column, direction) => {
    heads.forEach((h, k) => h.setAttribute("aria-sort", k === column && direction ? direction : "none"));
    const sign = direction === "descending" ? -1 : 1, numbers = column >= 0 && heads[column].classList.contains("n");
    const key = d => {
      const cell = d.row.cells[column], given = cell.dataset.s ?? cell.textContent;
      return numbers ? (given === "" ? NaN : Number(given)) : given;
    };
    const keyed = data.map(d => ({d, v: direction ? key(d) : d.k}));
    keyed.sort((a, b) => {
      if (!direction) return a.v - b.v;
      if (!numbers) return sign * collator.compare(a.v, b.v) || a.d.k - b.d.k;
      if (Number.isNaN(a.v) || Number.isNaN(b.v)) return Number.isNaN(a.v) - Number.isNaN(b.v) || a.d.k - b.d.k;
      return sign * (a.v - b.v) || a.d.k - b.d.k;
    });
    const made = document.createDocumentFragment();
    for (const {d} of keyed) made.append(d.row);
    body.append(made);
    order = keyed.map(({d}) => d);
    apply();
    if (sorter) sorter.value = direction ? column + " " + direction : "";
  };
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const next = {none: "ascending", ascending: "descending", descending: ""}[head.getAttribute("aria-sort")];
    sort(column, next);
  }));
  if (sorter) sorter.addEventListener("change", () => {
    const [column, direction] = sorter.value.split(" ");
    sort(direction ? Number(column) : -1, direction || "");
  });

  let waiting = 0;
  const afresh = () => { limit = step; apply(); };
  form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(afresh, data.length > 2000 ? 120 : 0); });
  form.addEventListener("reset", () => setTimeout(afresh, 0));
  form.addEventListener("submit", e => { e.preventDefault(); afresh(); });
  const [next, all] = more.querySelectorAll("button");
  next.addEventListener("click", () => { limit += step; apply(); });
  all.addEventListener("click", () => { limit = data.length; apply(); });
  apply();
})();
"""
