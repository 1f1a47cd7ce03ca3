#pragma once
// The script of the report page: it reads the JSON that stands before it (its fields: io/report.hpp) and draws SVG with
// axes, and values under the pointer. All text goes in as textContent, so no word of a user is ever markup. null stands
// for a value or a part that is not there.

#include <string_view>

namespace kimik3::detail {

inline constexpr std::string_view report_script = R"js("use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
const tip = document.getElementById("tip");
document.title = data.title;

function add(parent, tag, attributes = {}, text) {
    const space = tag === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI;
    const node = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
}
const is_number = x => x !== null && Number.isFinite(x);
function shown(x, digits = 4) {
    if (!is_number(x)) return "-";
    const size = Math.abs(x);
    if (size >= 1e15 || (size > 0 && size < 1e-3)) return Number(x.toPrecision(3)).toExponential().replace("e+", "e");
    for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
        if (size >= unit) return shown(x / (unit === 1e4 ? 1e3 : unit), Math.max(3, digits - 1)) + letter;
    return String(Number(x.toPrecision(digits)));
}
function section(title, text) {
    add(main, "h2", {}, title);
    if (text) add(main, "p", {}, text);
}
const absent = (title, text) => { section(title); add(main, "p", {class: "absent"}, "Not available: " + text); };
const grid = () => add(main, "div", {class: "grid"});
function card(parent, title) {
    const made = add(parent, "div", {class: "card"});
    if (title) add(made, "h3", {}, title);
    return made;
}
function legend(parent, entries) {
    const list = add(parent, "div", {class: "legend"});
    for (const [color, name] of entries) {
        const entry = add(list, "span");
        if (color) add(entry, "i").style.background = color;
        entry.append(name);
    }
}

/// Shows lines at the pointer while it is over the node: lines_at(x, y in the svg's own units), or null.
function hover(svg, node, lines_at, leave = () => {}) {
    node.addEventListener("pointermove", event => {
        const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        const lines = lines_at(place.x, place.y);
        tip.style.visibility = lines ? "visible" : "hidden";
        if (!lines) return;
        tip.replaceChildren();
        for (const line of lines) add(tip, "div", {}, line);
        const box = tip.getBoundingClientRect();
        tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6)) + "px";
        tip.style.top = Math.max(4, event.clientY - box.height - 10) + "px";
    });
    node.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; leave(); });
}

function ticks(low, high, most) {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at <= high / step + 1e-9; ++at) found.push(at * step);
    return found;
}

/// xs: steps; curves: {name, color, ys, dots, faint}. from_zero: the axis begins at 0.
function line_chart(parent, title, unit, xs, curves, from_zero) {
    const box = card(parent, title), width = 520, height = 210;
    const left = 52, right = width - 12, top = 8, bottom = height - 34;
    const named = curves.filter(curve => !curve.faint);
    if (named.length > 1) legend(box, named.map(curve => [`var(${curve.color})`, curve.name]));
    const svg = add(box, "svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title});
    const values = curves.flatMap(curve => curve.ys).filter(is_number);
    if (values.length === 0) return add(svg, "text", {x: left, y: 30}, "no values yet");
    let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    if (from_zero) low = Math.min(0, low);
    const pad = high > low ? 0.04 * (high - low) : 0.1 * Math.abs(high) || 1;
    high += pad;
    if (!from_zero || low < 0) low -= pad;
    const first = xs[0], last = xs.length > 1 ? xs[xs.length - 1] : first + 1;
    const x_of = x => left + (x - first) / (last - first) * (right - left);
    const y_of = y => bottom - (y - low) / (high - low) * (bottom - top);
    for (const y of ticks(low, high, 5)) {
        add(svg, "line", {class: "grid-line", x1: left, x2: right, y1: y_of(y), y2: y_of(y)});
        add(svg, "text", {x: left - 6, y: y_of(y) + 4, "text-anchor": "end"}, shown(y));
    }
    add(svg, "line", {class: "axis", x1: left, x2: right, y1: bottom, y2: bottom});
    for (const x of ticks(first, last, 6).filter(Number.isInteger))
        add(svg, "text", {x: x_of(x), y: bottom + 15, "text-anchor": "middle"}, shown(x));
    add(svg, "text", {x: right, y: height - 3, "text-anchor": "end"}, "step");
    if (unit) add(svg, "text", {x: left, y: height - 3}, unit);
    for (const curve of curves) {
        let path = "", pen = "M";
        const lone = [];
        curve.ys.forEach((y, at) => {
            if (!is_number(y)) { if (!curve.dots) pen = "M"; return; }
            path += pen + x_of(xs[at]).toFixed(1) + " " + y_of(y).toFixed(1);
            pen = "L";
            lone.push([x_of(xs[at]), y_of(y)]);
        });
        const style = `stroke: var(${curve.color})`;
        add(svg, "path", {class: curve.faint ? "curve faint" : "curve", d: path || "M0 0", style});
        if (lone.length === 1 || (curve.dots && lone.length <= 60))
            for (const [cx, cy] of lone) add(svg, "circle", {cx, cy, r: 3, style: `fill: var(${curve.color})`});
    }
    const cursor = add(svg, "line", {class: "cursor", y1: top, y2: bottom});
    const surface = add(svg, "rect", {class: "surface", x: left, y: top, width: right - left, height: bottom - top});
    hover(svg, surface, x => {
        const wanted = first + (x - left) / (right - left) * (last - first);
        let at = xs.findIndex(step => step >= wanted);
        if (at < 0) at = xs.length - 1;
        if (at > 0 && wanted - xs[at - 1] < xs[at] - wanted) --at;
        for (const end of ["x1", "x2"]) cursor.setAttribute(end, x_of(xs[at]));
        cursor.style.visibility = "visible";
        const there = curves.filter(curve => is_number(curve.ys[at]));
        return [`step ${xs[at]}`, ...there.map(curve => `${curve.name} ${shown(curve.ys[at], 5)}`)];
    }, () => { cursor.style.visibility = "hidden"; });
}

/// Colours as mixtures of variables. level 0 to 1; balance -1 (idle) to 1 (busy).
const mix = (from, to, part) => `color-mix(in oklab, var(${to}) ${Math.round(100 * part)}%, var(${from}))`;
const level_color = level =>
    level < 0.5 ? mix("--low", "--middle", 2 * level) : mix("--middle", "--high", 2 * level - 1);
const load_color = load => {
    const balance = Math.max(-1, Math.min(1, Math.log2(load) / 2));
    return balance < 0 ? mix("--even", "--cold", -balance) : mix("--even", "--hot", balance);
};
const load_legend = parent => legend(parent, [[load_color(0), "a quarter or less of the even share"],
    [load_color(0.5), "half"], [load_color(1), "even"], [load_color(2), "twice"], [load_color(4), "four times or more"]]);

/// rows, columns: names, shown where there is room; value(row, column) or null; tip_of(row, column, value).
function heat_map(parent, title, rows, columns, value, color, tip_of, options = {}) {
    const box = card(parent, title), width = options.wide ? 1090 : 520;
    const left = options.left || 52, top = 4, right = width - 8;
    const cell_h = Math.max(2, Math.min(options.cell || 22, Math.floor((options.height || 420) / rows.length)));
    const cell_w = (right - left) / columns.length, bottom = top + cell_h * rows.length;
    const svg = add(box, "svg", {viewBox: `0 0 ${width} ${bottom + 34}`, role: "img", "aria-label": title});
    const gap = Math.min(cell_w, cell_h) > 8 ? 1 : 0, paths = new Map();
    rows.forEach((_, row) => columns.forEach((_, column) => {
        const x = value(row, column);
        if (!is_number(x)) return;
        const shade = color(x), place = [left + column * cell_w, top + row * cell_h, cell_w - gap, cell_h - gap];
        const [px, py, w, h] = place.map(number => number.toFixed(2));
        paths.set(shade, (paths.get(shade) || "") + `M${px} ${py}h${w}v${h}h-${w}z`);
        if (options.numbers && cell_h >= 14 && cell_w >= 26)
            (options.texts ||= []).push([left + (column + 0.5) * cell_w, top + (row + 0.5) * cell_h + 3.5, x]);
    }));
    for (const [shade, d] of paths) add(svg, "path", {d, style: `fill: ${shade}`});
    for (const [x, y, number] of options.texts || [])
        add(svg, "text", {class: "value", x, y, style: `fill: var(${number > 0.65 ? "--on-high" : "--on-low"})`},
            number.toFixed(2));
    const row_every = Math.ceil(12 / cell_h), column_every = Math.ceil((options.label || 30) / cell_w);
    rows.forEach((name, row) => {
        if (row % row_every === 0)
            add(svg, "text", {x: left - 6, y: top + (row + 0.5) * cell_h + 4, "text-anchor": "end"}, name);
    });
    columns.forEach((name, column) => {
        if (column % column_every === 0)
            add(svg, "text", {x: left + (column + 0.5) * cell_w, y: bottom + 14, "text-anchor": "middle"}, name);
    });
    if (options.axis) add(svg, "text", {x: right, y: bottom + 29, "text-anchor": "end"}, options.axis);
    const surface = add(svg, "rect", {class: "surface", x: left, y: top, width: right - left, height: bottom - top});
    hover(svg, surface, (x, y) => {
        const row = Math.min(rows.length - 1, Math.floor((y - top) / cell_h));
        const column = Math.min(columns.length - 1, Math.floor((x - left) / cell_w));
        if (row < 0 || column < 0 || !is_number(value(row, column))) return null;
        return tip_of(row, column, value(row, column));
    });
}
)js"
R"js(
function draw_curves() {
    if (!data.curves) return absent("Training", "a checkpoint holds no curves; the report.html of its run has them.");
    const c = data.curves;
    section("Training", c.every > 1 ? `Each point is the mean of ${c.every} steps.` : "");
    const parent = grid();
    let mean = null;
    const smooth = c.loss.map(y => mean = !is_number(y) ? mean : mean === null ? y : mean + 0.1 * (y - mean));
    line_chart(parent, "Loss", "nats a token", c.step, [
        {name: "each step", color: "--one", ys: c.loss, faint: true},
        {name: "training, running mean", color: "--one", ys: smooth},
        {name: "validation", color: "--two", ys: c.val_loss, dots: true}]);
    line_chart(parent, "Learning rate", "", c.step, [{name: "learning rate", color: "--one", ys: c.lr}], true);
    line_chart(parent, "Gradient norm, before clipping", "", c.step,
        [{name: "gradient norm", color: "--one", ys: c.gradient_norm}], true);
    line_chart(parent, "Speed", "tokens a second", c.step,
        [{name: "tokens/s", color: "--one", ys: c.tokens_per_second}], true);
}

/// Why a part has nothing to show.
const reason_without = reason => data.text ? reason : "no text was looked at.";

function draw_load() {
    const title = "Expert load";
    if (data.experts.length === 0) return absent(title, reason_without("this model routes nothing."));
    section(title, `Tokens that the routers sent to each expert, over its even share. Seen on ${data.text}.`);
    load_legend(main);
    const experts = data.experts[0].load.map((_, expert) => String(expert));
    const tip_of = (layer, expert, load) => [`layer ${layer}, expert ${expert}`, `${shown(load, 3)} of its even share`];
    heat_map(main, "Now, layer by expert", data.experts.map(each => `layer ${each.layer}`), experts,
        (row, column) => data.experts[row].load[column], load_color,
        (row, column, load) => tip_of(data.experts[row].layer, column, load),
        {wide: true, left: 60, axis: "expert", height: 500});
    const history = data.load_history;
    if (!history || history.step.length < 2) return;
    add(main, "p");
    const parent = grid();
    history.layers.forEach(each => {
        const now = data.experts.find(other => other.layer === each.layer).load;
        const range = `${shown(Math.min(...now), 2)} to ${shown(Math.max(...now), 2)}`;
        heat_map(parent, `Layer ${each.layer} over time; now ${range}`, experts, history.step.map(step => shown(step)),
            (row, column) => each.load[row][column], load_color,
            (row, column, load) => [`step ${history.step[column]}`, ...tip_of(each.layer, row, load)],
            {axis: "step", cell: 10, height: 200, label: 44, left: 30});
    });
}

const candidate_name = (at, count) => at === count - 1 ? "running sum" : at === 0 ? "embedding" : `block ${at}`;
const site_name = each => each.site === "output" ? "output" : `${each.layer} ${each.site}`;

function draw_depth() {
    const title = "Depth attended to";
    if (data.depth.length === 0)
        return absent(title, reason_without("this model has no Attention Residuals."));
    section(title, "Mean Attention Residuals weights of every site over the candidates that it can read: the " +
        `embedding, the sums of finished blocks, and the running sum. Seen on ${data.text}.`);
    legend(main, [0, 0.25, 0.5, 0.75, 1].map(level => [level_color(level), String(level)]));
    const most = Math.max(...data.depth.map(each => each.weight.length));
    const columns = Array.from({length: most}, (_, at) => candidate_name(at, most));
    const value = (row, column) => {
        const weight = data.depth[row].weight, last = weight.length - 1;
        return column === most - 1 ? weight[last] : column < last ? weight[column] : null;
    };
    heat_map(main, "Site by candidate", data.depth.map(site_name), columns, value, level_color,
        (row, column, weight) => [site_name(data.depth[row]), `${columns[column]}: ${shown(weight, 3)}`],
        {wide: true, left: 100, numbers: true, height: 900, label: 74});
}

function draw_decay() {
    const title = "How long KDA remembers";
    if (data.decay.length === 0) return absent(title, reason_without("this model has no KDA layer."));
    section(title, "Half-lives of the channels of every head, in tokens, as their decay gates set them; the bar is " +
        `the median. Seen on ${data.text}.`);
    const parent = grid(), bins = 60, width = 520, left = 52, right = 508, edge = bin => 10 ** (bin / 10 - 1);
    for (const each of data.decay) {
        const row = Math.max(8, Math.min(34, 500 / each.heads.length)), top = 4, bottom = top + row * each.heads.length;
        const box = card(parent, `Layer ${each.layer}`);
        const svg = add(box, "svg", {viewBox: `0 0 ${width} ${bottom + 34}`, role: "img", "aria-label": "Half-lives"});
        const x_of = bin => left + bin / bins * (right - left);
        for (let decade = 0; decade <= 6; ++decade) {
            add(svg, "line", {class: "grid-line", x1: x_of(10 * decade), x2: x_of(10 * decade), y1: top, y2: bottom});
            add(svg, "text", {x: x_of(10 * decade), y: bottom + 14, "text-anchor": "middle"}, shown(edge(10 * decade)));
        }
        add(svg, "text", {x: right, y: bottom + 29, "text-anchor": "end"}, "half-life in tokens");
        each.heads.forEach((counts, head) => {
            const base = top + row * (head + 1), total = counts.reduce((a, b) => a + b, 0);
            const highest = Math.max(1, ...counts);
            if (row >= 12 || head % 2 === 0)
                add(svg, "text", {x: left - 6, y: base - row / 2 + 4, "text-anchor": "end"}, `head ${head}`);
            add(svg, "line", {class: "axis", x1: left, x2: right, y1: base, y2: base});
            let path = `M${left} ${base}`, seen = 0, median = 0;
            counts.forEach((count, bin) => {
                const y = (base - count / highest * (row - 4)).toFixed(1);
                path += `L${x_of(bin).toFixed(1)} ${y}L${x_of(bin + 1).toFixed(1)} ${y}`;
                if (seen < total / 2) median = bin + (total / 2 - seen) / count;
                seen += count;
            });
            if (total === 0) return;
            add(svg, "path", {class: "ridge", d: path + `L${right} ${base}z`});
            add(svg, "line", {class: "median", x1: x_of(median), x2: x_of(median), y1: base - row + 6, y2: base});
        });
        const surface = add(svg, "rect", {class: "surface", x: left, y: top, width: right - left, height: bottom - top});
        hover(svg, surface, (x, y) => {
            const head = Math.min(each.heads.length - 1, Math.floor((y - top) / row));
            const bin = Math.min(bins - 1, Math.floor((x - left) / (right - left) * bins));
            const counts = each.heads[head], total = counts.reduce((a, b) => a + b, 0);
            return [`layer ${each.layer}, head ${head}`, `${shown(edge(bin), 3)} to ${shown(edge(bin + 1), 3)} tokens`,
                `${shown(100 * counts[bin] / total, 3)} % of channels and tokens`];
        });
    }
}
)js"
R"js(
function draw_prompt() {
    if (!data.prompt) return;
    const prompt = data.prompt;
    section("The prompt, token by token", "In each layer the experts chosen, the highest score first, in a stronger " +
        "colour with more weight; under them what the layer's attention (upper strip) and feed-forward (lower strip) " +
        "read of the depth. Point at a cell for the numbers.");
    const most = Math.max(1, ...prompt.depth.map(each => each.candidates));
    const color = (at, count) =>
        at === count - 1 ? "var(--two)" : mix("--first", "--last", most > 2 ? at / (most - 2) : 0);
    legend(main, Array.from({length: most}, (_, at) => [color(at, most), candidate_name(at, most)]));
    const table = add(add(card(main), "div", {class: "scroll"}), "table", {class: "prompt"});
    const layers = [...new Set([...prompt.routers, ...prompt.depth].map(each => each.layer))];
    layers.sort((a, b) => a - b);
    const is_output = layer => prompt.depth.some(each => each.layer === layer && each.site === "output");
    const head = add(table, "tr");
    for (const name of ["", "token", ...layers.map(layer => is_output(layer) ? "output" : `layer ${layer}`)])
        add(head, "th", {}, name);
    const slice = (list, size, at) => list.slice(size * at, size * at + size);
    prompt.tokens.forEach((token, at) => {
        const row = add(table, "tr");
        add(row, "td", {}, at);
        add(add(row, "td"), "code", {}, token);
        for (const layer of layers) {
            const cell = add(row, "td"), notes = [];
            for (const each of prompt.routers.filter(other => other.layer === layer)) {
                const weights = slice(each.weight, each.chosen, at), sum = weights.reduce((a, b) => a + b, 0) || 1;
                slice(each.expert, each.chosen, at).forEach((expert, place) => {
                    const share = Math.round(70 * weights[place] / sum);
                    add(cell, "span", {class: "expert", style: `--share: ${share}%`}, expert);
                    notes.push(`expert ${expert}: ${shown(weights[place], 3)}`);
                });
            }
            for (const each of prompt.depth.filter(other => other.layer === layer)) {
                let from = 0;
                const stops = slice(each.weight, each.candidates, at).map((weight, place) => {
                    notes.push(`${each.site} reads ${candidate_name(place, each.candidates)}: ${shown(weight, 3)}`);
                    const begin = from;
                    from += 100 * weight;
                    return `${color(place, each.candidates)} ${begin.toFixed(1)}% ${from.toFixed(1)}%`;
                });
                add(cell, "span", {class: "strip"}).style.background = `linear-gradient(to right, ${stops.join(", ")})`;
            }
            cell.title = notes.join("\n");
        }
    });
}

function rows_of(parent, head, rows, numbers_from) {
    const table = add(parent, "table"), kind = at => at >= numbers_from ? {class: "number"} : {};
    if (head) { const row = add(table, "tr"); head.forEach((name, at) => add(row, "th", kind(at), name)); }
    rows.forEach(cells => {
        const row = add(table, "tr", cells[0] === "all" ? {class: "sum"} : {});
        cells.forEach((text, at) => add(row, "td", kind(at), text));
    });
}

function draw_tables() {
    section("Model and run");
    const parent = grid();
    parent.classList.add("tables");
    rows_of(card(parent, "Run"), null, data.facts, 9);
    const whole = name => data.parameters.reduce((sum, each) => sum + each[name], 0), total = whole("total");
    const row = each => [each.name, each.tensors, each.total.toLocaleString("en"), each.active.toLocaleString("en"),
        total > 0 ? (100 * each.total / total).toFixed(1) : "-"];
    rows_of(card(parent, "Parameters"), ["part", "tensors", "numbers", "active for a token", "%"],
        [...data.parameters, {name: "all", tensors: whole("tensors"), total, active: whole("active")}].map(row), 1);
    const bytes = data.memory.reduce((sum, each) => sum + each[1], 0);
    rows_of(card(parent, "Memory"), ["what", "bytes"],
        [...data.memory, ["all", bytes]].map(([name, size]) => [name, shown(size, 3) + "B"]), 1);
    add(card(parent, "Command"), "pre", {}, data.command);
    add(card(parent, "config.json"), "pre", {}, data.config);
}

main.replaceChildren();
add(main, "h1", {}, data.title);
const tiles = add(main, "div", {class: "tiles"});
for (const [name, value] of data.headline) {
    const tile = add(tiles, "div", {class: "card tile"});
    add(tile, "span", {}, name);
    add(tile, "b", {}, value);
}
if (data.prompt) draw_prompt();
draw_curves();
draw_load();
draw_depth();
draw_decay();
draw_tables();
document.documentElement.dataset.drawn = "whole";
)js";

}  // namespace kimik3::detail
