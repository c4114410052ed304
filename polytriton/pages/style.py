"""The page's style sheet: system fonts, light and dark by the reader's setting, and a sheet for paper."""

from __future__ import annotations

from polytriton.show.verdicts import colours, rules

_SHEET = """
:root {
  color-scheme: light dark;
  --ground: #fcfcfa; --panel: #ffffff; --ink: #1d2126; --soft: #5b6470; --rule: #dcdfe3; --track: #e9ebee; --focus: #1f5fbf;
  @LIGHT@ --accent: #2a64a8; --accent2: #a9c3e2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #15181c; --panel: #1c2025; --ink: #e6e8eb; --soft: #a0a8b2; --rule: #343a42; --track: #2b3037; --focus: #7fb2ff;
    @DARK@ --accent: #7fb0ea; --accent2: #3d5f88;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 76rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 0 0 .35rem; overflow-wrap: anywhere; }
p { margin: .25rem 0; }
small, .note, .meta { color: var(--soft); font-weight: 400; }
a { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; margin: .8rem 0 0; }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; border-radius: 3px; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--panel); padding: .3rem .6rem; }
.tally { display: flex; flex-wrap: wrap; gap: .75rem 2.25rem; margin: .25rem 0 1rem; padding: 0; list-style: none; }
.tally li { min-width: 4.5rem; }
.tally b { display: block; font-size: 1.75rem; line-height: 1.15; font-weight: 600; }
.stack { display: block; width: 100%; height: 12px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
.plots figure, .card, .network { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: .9rem 1rem; }
.network { margin-bottom: 1rem; }
figure { margin: 0; }
.plots figcaption { font-weight: 600; margin-bottom: .4rem; }
.plots figcaption small { font-weight: 400; }
.plot { display: block; width: 100%; height: auto; }
.tick, .name { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.zero { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 3; }
.curve { fill: none; stroke-width: 2; stroke: var(--soft); }
.curve.sat { stroke-dasharray: 6 3; } .curve.all { stroke-dasharray: 2 3; }
.bar.before { fill: var(--accent2); } .bar.after { fill: var(--accent); } .track { fill: var(--track); }
.inline { display: block; height: 8px; margin-top: 3px; } .inline.tall { height: 24px; }
.rivals { display: block; width: 100%; max-width: 250px; height: auto; margin-top: .5rem; }
.scroll { overflow: auto; max-width: 100%; }
.scroll + .scroll { margin-top: 1.25rem; }
.scroll.long { max-height: 80vh; border: 1px solid var(--rule); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .32rem .9rem .32rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.layers th, .layers td { white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; font-size: .87rem; vertical-align: bottom; background: var(--ground); }
.network thead th { background: none; }
tbody th { font-weight: 600; }
.queries { font-size: .93rem; }
.queries thead th { position: sticky; top: 0; z-index: 1; }
.queries th:first-child, .queries td:first-child { padding-left: .6rem; }
.queries td.n { text-align: right; white-space: nowrap; } .queries th.n { text-align: right; }
.queries td { overflow-wrap: anywhere; }
.queries .v { white-space: nowrap; }
.queries td:nth-child(2) { min-width: 8rem; }
th button {
  font: inherit; color: inherit; background: none; border: 0; padding: .1rem .2rem; margin: -.1rem -.2rem; cursor: pointer;
  white-space: nowrap;
}
th button::after { content: "\\2195"; opacity: .35; margin-left: .3em; }
th[aria-sort="ascending"] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort="descending"] button::after { content: "\\2193"; opacity: 1; }
.v { font-weight: 600; color: var(--error); }
.v::before { content: "\\25cf"; margin-right: .35em; }
@VERDICTS@.filters { display: flex; flex-wrap: wrap; gap: .6rem 1.5rem; align-items: end; margin: 0 0 .75rem; }
.filters label, .filters legend { color: var(--soft); font-size: .87rem; }
.filters fieldset { border: 0; margin: 0; padding: 0; min-width: 0; }
.filters fieldset div { display: flex; flex-wrap: wrap; gap: .25rem 1rem; min-height: 2.1rem; align-items: center; }
.filters fieldset label { font-size: 1rem; color: inherit; }
.filters select, .filters input[type=search], .filters button, .more button {
  font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--soft); border-radius: 4px;
  padding: .25rem .5rem; min-height: 2.1rem; max-width: 100%;
}
.filters select { max-width: 18rem; }
.filters select, .filters input[type=search] { display: block; }
.filters button, .more button { cursor: pointer; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 28rem), 1fr)); gap: 1rem; }
.cards .card { content-visibility: auto; contain-intrinsic-size: auto 26rem; }
.figures { display: flex; flex-wrap: wrap; gap: .75rem; margin: .5rem 0; }
.figures figure { flex: none; }
.figures img { display: block; width: 6rem; height: 6rem; object-fit: contain; object-position: left; image-rendering: pixelated; }
.figures .wide img { width: 12rem; }
.figures img { background: var(--track); }
.figures figcaption { font-size: .84rem; line-height: 1.3; margin-top: .2rem; }
dl { display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; margin: .4rem 0 0; }
dt { color: var(--soft); font-size: .84rem; } dd { margin: 0; overflow-wrap: anywhere; }
[hidden] { display: none !important; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .87rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { padding: 1rem .8rem 3rem; }
  .tally { gap: .6rem 1.5rem; } .tally b { font-size: 1.4rem; }
  th, td { padding-right: .5rem; }
  .tick, .name { font-size: 15px; }
  .queries thead, .layers thead { display: none; }
  .queries, .queries tbody, .layers, .layers tbody { display: block; }
  .queries tr, .layers tr {
    display: grid; grid-template-columns: 1fr 1fr; gap: 0 .75rem; padding: .5rem 0; border-bottom: 1px solid var(--rule);
  }
  .queries td, .layers td, .layers th { display: block; border: 0; padding: 0; white-space: normal; text-align: left !important; }
  .queries td:empty, .layers td:empty { display: none; }
  .queries td[data-h]::before, .layers td[data-h]::before { content: attr(data-h) " "; color: var(--soft); }
  .layers th { grid-column: 1 / -1; }
  .queries td:first-child { padding-left: 0; }
  .queries td.wide { grid-column: 1 / -1; }
  .sorter { display: block !important; }
  .scroll.long { max-height: none; border: 0; overflow: visible; }
}
.sorter { display: none; }
@media print {
  :root {
    color-scheme: light;
    --ground: #fff; --panel: #fff; --ink: #000; --soft: #444; --rule: #bbb; --track: #e4e4e4;
    @LIGHT@ --accent: #2a64a8; --accent2: #a9c3e2;
  }
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  nav, .filters, .more, .skip, th button::after { display: none; }
  .scroll, .scroll.long { overflow: visible; max-height: none; border: 0; }
  .queries thead th { position: static; }
  thead { display: table-header-group; }
  tr, .card, .plots figure { break-inside: avoid; }
  .cards .card { content-visibility: visible; }
  h2, h3 { break-after: avoid; }
  .plots { grid-template-columns: 1fr 1fr; } .cards { grid-template-columns: 1fr 1fr; }
  .layers { font-size: 8pt; } .layers th, .layers td { padding-right: .4rem; white-space: normal; }
  .figures img { width: 4.5rem; height: 4.5rem; } .figures .wide img { width: 9rem; }
  svg, img, .v { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
STYLE = _SHEET.replace("@LIGHT@", colours("light")).replace("@DARK@", colours("dark")).replace("@VERDICTS@", rules())
