"""The page's looks: light and dark, narrow and wide, screen and paper; nothing is loaded."""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1c2530; --soft: #5a6675; --grid: #d5dae1;
  --series-1: #2563c9; --series-2: #c2560c;
  --series-3: #157a5c; --series-4: #8a3ab9; --series-5: #8f7a00; --good: #1c7a43; --mark: #eaf1fd; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1a2029; --ink: #e4e9f0; --soft: #9aa7b7; --grid: #343d4a;
  --series-1: #79abff; --series-2: #ff9f5a;
  --series-3: #5cd6ae; --series-4: #d29bf5; --series-5: #e6ce4f; --good: #6fd39a; --mark: #202c40; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 22px 0 10px; } .scroll + .plots { margin-top: 14px; }
p.lead, .note, caption { color: var(--soft); } p.lead { margin: 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px;
  margin-top: 22px; }
.card, .plot, .scroll, .example { background: var(--card);
  border: 1px solid var(--grid); border-radius: 10px; }
.card { padding: 12px 16px; } .card .name { color: var(--soft); font-size: 13px; min-height: 39px; }
.card .value { font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }
.card .was { color: var(--soft); font-size: 13px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 14px; }
.plot { padding: 10px 12px; margin: 0; } .plot svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 11px; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; } td.best { color: var(--good); font-weight: 650; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 14px;
  align-items: start; }
.columns > div { min-width: 0; }
.columns th:last-child, .columns td:last-child { text-align: left; }
.columns td:last-child { white-space: normal; overflow-wrap: anywhere;
  font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace; font-size: 13px; }
.example { padding: 12px 16px; margin-bottom: 12px; overflow-wrap: anywhere; }
.example .mr { font-family: ui-monospace, Menlo, "DejaVu Sans Mono", monospace; font-size: 13px;
  color: var(--soft); }
.example dl { display: grid; grid-template-columns: 110px 1fr; gap: 4px 12px; margin: 8px 0 0; }
.example mark { color: inherit; background: var(--mark); border-bottom: 2px solid currentColor; }
.example dt { color: var(--soft); font-size: 13px; } .example dd { margin: 0; }
.example dd.output { background: var(--mark); border-radius: 6px; padding: 1px 8px; margin-left: -8px; }
ul.plain { margin: 0; padding: 0; list-style: none; } .note { font-size: 13px; }
@media (max-width: 560px) { .example dl { grid-template-columns: 1fr; } .example dd { margin-bottom: 6px; } }
@media print { .card, .plot, .example { break-inside: avoid; } }
"""
