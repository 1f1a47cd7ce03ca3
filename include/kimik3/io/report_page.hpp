#pragma once
// The fixed parts of the report page (io/report.hpp): the document with its style, and the end of it. Between them
// stand the data, as JSON, and the script of io/report_script.hpp, which draws from them. The page asks no network for
// anything, and its content security policy forbids it to. Colours are variables with a light and a dark value.

#include <string_view>

namespace kimik3::detail {

inline constexpr std::string_view report_head = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>kimik3</title>
<style>
:root {
    color-scheme: light dark;
    --page: #f5f5f2; --card: #fdfdfc; --line: #e2e1da; --axis: #c3c2b7;
    --ink: #141413; --soft: #52514e; --mute: #7a7974;
    --one: #2a78d6; --two: #d9541f;
    --low: #e9f0f8; --middle: #5b9be0; --high: #0d366b; --on-low: #141413; --on-high: #ffffff;
    --cold: #2a78d6; --even: #efeeea; --hot: #d63a39;
    --first: #cfe1f5; --last: #1c5cab;
}
@media (prefers-color-scheme: dark) {
    :root {
        --page: #121211; --card: #1b1b1a; --line: #2e2e2c; --axis: #4a4945;
        --ink: #f4f4f1; --soft: #c3c2b7; --mute: #96958e;
        --one: #4a94ea; --two: #ec7440;
        --low: #1f2732; --middle: #2a6fc4; --high: #b7d7fb; --on-low: #f4f4f1; --on-high: #10161d;
        --cold: #4a94ea; --even: #383835; --hot: #ee5f5c;
        --first: #22405f; --last: #9cc6f6;
    }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 2px; }
h3 { font-size: 13px; font-weight: 600; margin: 0 0 4px; }
p { margin: 2px 0 10px; color: var(--soft); max-width: 96ch; }
p.absent { font-style: italic; color: var(--mute); }
code, pre { font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 360px; overflow-y: auto; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; min-width: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 14px; }
.tables { align-items: start; }
.tiles { display: flex; flex-wrap: wrap; gap: 14px; margin: 16px 0 0; }
.tile { flex: 1 1 120px; }
.tile b { display: block; font-size: 21px; font-weight: 600; }
.tile span { color: var(--mute); font-size: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; color: var(--soft); font-size: 12px; margin: 2px 0 8px; }
.legend i { display: inline-block; width: 14px; height: 10px; border-radius: 2px; margin-right: 5px; }
.scroll { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--mute); font-size: 11px; }
svg .grid-line { stroke: var(--line); }
svg .axis { stroke: var(--axis); }
svg .cursor { stroke: var(--soft); stroke-dasharray: 2 3; visibility: hidden; }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .faint { stroke-width: 1; opacity: .35; }
svg .surface { fill: transparent; }
svg .ridge { fill: var(--one); fill-opacity: .28; stroke: var(--one); stroke-width: 1.2; }
svg .median { stroke: var(--ink); stroke-width: 2; }
svg .value { font-size: 10px; text-anchor: middle; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: 3px 10px 3px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); font-size: 12px; }
td.number, th.number { text-align: right; }
tr.sum td { font-weight: 600; border-bottom: 0; }
.prompt td, .prompt th { white-space: nowrap; padding: 3px 12px 3px 0; }
.prompt th:first-child, .prompt td:first-child { position: sticky; left: 0; background: var(--card); }
.prompt td:first-child { color: var(--mute); }
.expert { display: inline-block; min-width: 22px; text-align: center; border-radius: 3px; margin-right: 3px;
    padding: 0 3px; font-size: 12px; background: color-mix(in srgb, var(--one) var(--share), var(--card)); }
.strip { display: block; width: 64px; height: 6px; border-radius: 1px; margin-top: 3px; }
#tip { position: fixed; z-index: 1; pointer-events: none; background: var(--ink); color: var(--card); font-size: 12px;
    padding: 5px 9px; border-radius: 5px; visibility: hidden; max-width: 280px; font-variant-numeric: tabular-nums; }
</style>
</head>
<body>
<main><noscript>This page draws its figures by a script of its own, which is switched off here.</noscript></main>
<div id="tip"></div>
<script type="application/json" id="data">)html";

inline constexpr std::string_view report_middle = "</script>\n<script>\n";

inline constexpr std::string_view report_tail = "</script>\n</body>\n</html>\n";

}  // namespace kimik3::detail
