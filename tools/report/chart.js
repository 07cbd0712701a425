// SPDX-License-Identifier: Apache-2.0
// chart.js - numbers, elements, axes, and the four figures that all pages are made of: bars, dots
// with intervals, lines, and points with names. A figure is drawn at the width that it has, one
// unit a pixel, and again when that changes, so that its text stays readable on a narrow screen.
// All text reaches the page as text nodes.
"use strict";

const svgNamespace = document.getElementById("blank").namespaceURI;

function append(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  for (const child of children)
    if (child !== undefined && child !== null) node.append(child);
  return node;
}

function html(name, attributes, ...children) {
  return append(document.createElement(name), attributes, children);
}

function shape(name, attributes, ...children) {
  return append(document.createElementNS(svgNamespace, name), attributes, children);
}

// ---- numbers ----

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function digits(value, count) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(count - 1).replace("e+", "e");
  const decimals = Math.max(0, count - 1 - Math.floor(Math.log10(size)));
  return value.toFixed(Math.min(decimals, 8));
}

function scaled(value, step, units) {
  let unit = 0;
  while (unit + 1 < units.length && Math.abs(value) >= step * 0.9995) {
    value /= step;
    unit++;
  }
  return (value === 0 ? "0" : digits(value, Math.abs(value) >= 100 ? 4 : 3)) + " " + units[unit];
}

// Each takes a number and gives its text with the unit; anything else becomes "-".
const format = {
  plain: (value) => digits(value, 4),
  whole: (value) => Math.round(value).toLocaleString("en"),
  ratio: (value) => value.toFixed(3),
  share: (value) => (value === 0 ? "0" : (100 * value).toFixed(Math.abs(value) < 0.1 ? 2 : 1)) +
    " %",
  bits: (value) => value.toFixed(2),
  bytes: (value) => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB", "PB"]),
  rate: (value) => scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
  seconds: (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size < 0.9995e-6) return digits(value * 1e9, 3) + " ns";
    if (size < 0.9995e-3) return digits(value * 1e6, 3) + " us";
    if (size < 0.9995) return digits(value * 1e3, 3) + " ms";
    return digits(value, size < 1000 ? 3 : 4) + " s";
  },
};
for (const [name, write] of Object.entries(format))
  format[name] = (value) => isNumber(value) ? write(value) : "-";

// What a loss costs: seconds, or prefills where no seconds are given.
format.alpha = (set) => set.alpha_s > 0 || !isNumber(set.alpha_prefills) ?
  format.seconds(set.alpha_s) : `${format.plain(set.alpha_prefills)} prefills`;

// A text or a number as it is; what is absent is a dash.
function word(value) {
  return value === undefined || value === null || value === "" ? "-" : String(value);
}

function mean(values) {
  const known = values.filter(isNumber);
  return known.length === 0 ? NaN : known.reduce((sum, value) => sum + value, 0) / known.length;
}

function unique(values) {
  return [...new Set(values)];
}

// ---- colours: one per policy, on every page the same; other names in order of appearance ----

const policyColours = {
  "utility": "#2f6fde", "none": "#8a8f98", "oracle": "#8b5cf6", "lru": "#e07b1a",
  "lru-leaf": "#1f9d68", "lru-twice": "#a8763e", "fifo": "#c2a100", "lfu": "#3aa3b8",
  "gdsf": "#d0433c", "s3fifo": "#b3419a", "sieve": "#7a8f00", "w-tinylfu": "#0f8578",
  "pensieve": "#e0699a", "adaptcache": "#8f4a2d",
};
const otherColours = ["#2f6fde", "#e07b1a", "#1f9d68", "#b3419a", "#c2a100", "#d0433c", "#3aa3b8",
  "#8b5cf6", "#7a8f00", "#8f4a2d", "#0f8578", "#e0699a"];
const namedColours = new Map();

function colourOf(name) {
  const policy = String(name).split(" ")[0];
  if (Object.hasOwn(policyColours, policy)) return policyColours[policy];
  if (!namedColours.has(name))
    namedColours.set(name, otherColours[namedColours.size % otherColours.length]);
  return namedColours.get(name);
}

// ---- figures ----

const redraws = [];
const ruler = document.createElement("canvas").getContext("2d");

function textWidth(text) {
  ruler.font = "12px " + getComputedStyle(document.body).fontFamily;
  return ruler.measureText(text).width;
}

function widest(texts) {
  return texts.reduce((most, text) => Math.max(most, textWidth(text)), 0);
}

function shorten(text, width) {
  if (textWidth(text) <= width) return text;
  let length = text.length;
  while (length > 1 && textWidth(text.slice(0, length) + "...") > width) length--;
  return text.slice(0, length) + "...";
}

function figure(parent, options, draw) {
  const holder = html("div");
  const box = html("figure", {}, html("h4", {}, options.title));
  if (options.legend && options.legend.length > 1) {
    box.append(html("div", {class: "legend"}, ...options.legend.map((entry) => {
      const mark = html("i");
      mark.style.background = entry.colour;
      if (entry.opacity) mark.style.opacity = entry.opacity;
      return html("span", {}, mark, entry.name);
    })));
  }
  if (options.yTitle) box.append(html("div", {class: "axis"}, options.yTitle));
  box.append(holder);
  if (options.xTitle) box.append(html("div", {class: "axis middle"}, options.xTitle));
  if (options.caption) box.append(html("figcaption", {}, options.caption));
  parent.append(box);
  let drawn = 0;
  redraws.push(() => {
    const width = Math.floor(holder.clientWidth);
    if (width < 40 || width === drawn) return;
    drawn = width;
    holder.replaceChildren(draw(width));
  });
}

function canvas(width, height, title) {
  return shape("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": title});
}

// 1, 2 or 5 times a power of ten, at least a part of the range.
function niceStep(range, parts) {
  const least = range / parts;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
}

function linearScale(low, high, from, to, parts) {
  if (!(high > low)) high = low + (Math.abs(low) || 1);
  const step = niceStep(high - low, parts);
  const ticks = [];
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  for (let i = first; i <= last; i++) ticks.push(i * step);
  return {at: (value) => from + (to - from) * (value - low) / (high - low), ticks};
}

function logScale(low, high, from, to, parts) {
  const bottom = Math.log10(low), top = Math.log10(high > low ? high : low * 10);
  const ticks = [];
  const stride = Math.max(1, Math.ceil((top - bottom) / parts));
  const factors = top - bottom < 1.2 ? [1, 2, 3, 5, 7] : top - bottom < 2.5 ? [1, 3] : [1];
  for (let power = Math.floor(bottom); power <= top; power++) {
    if (stride > 1 && power % stride !== 0) continue;
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return {at: (value) => from + (to - from) * (Math.log10(value) - bottom) / (top - bottom), ticks};
}

function scaleOf(log, low, high, from, to, parts) {
  return (log ? logScale : linearScale)(low, high, from, to, parts);
}

// The text of a tick: no zeros behind the last digit that counts.
function tickText(write, value) {
  return write(value).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

// Leaves out ticks whose labels would touch.
function spread(ticks, at, write) {
  let edge = -Infinity;
  return ticks.filter((tick) => {
    const half = textWidth(write(tick)) / 2, x = at(tick);
    if (x - half < edge + 8) return false;
    edge = x + half;
    return true;
  });
}

function xAxis(picture, scale, write, box) {
  const textOf = (tick) => tickText(write, tick);
  for (const tick of spread(scale.ticks, scale.at, textOf)) {
    const x = scale.at(tick);
    const half = textWidth(textOf(tick)) / 2;
    const inside = Math.min(Math.max(x, half + 1), box.width - half - 1);
    picture.append(
      shape("line", {class: "grid", x1: x, x2: x, y1: box.top, y2: box.bottom}),
      shape("text", {class: "tick", x: inside, y: box.bottom + 16, "text-anchor": "middle"},
        textOf(tick)));
  }
}

function yAxis(picture, scale, write, box) {
  for (const tick of scale.ticks) {
    const y = scale.at(tick);
    picture.append(
      shape("line", {class: "grid", x1: box.left, x2: box.right, y1: y, y2: y}),
      shape("text", {class: "tick", x: box.left - 6, y: y + 4, "text-anchor": "end"},
        tickText(write, tick)));
  }
}

// A dashed line with its name beside it, kept inside the picture.
function xBound(picture, bound, scale, box) {
  const x = scale.at(bound.value);
  if (!(x >= box.left - 0.5 && x <= box.right + 0.5)) return;
  const name = shorten(bound.name, box.width - 8), half = textWidth(name) / 2;
  picture.append(
    shape("line", {class: "bound", x1: x, x2: x, y1: box.top - 4, y2: box.bottom}),
    shape("text", {class: "axis", "text-anchor": "middle", y: box.top - 8,
      x: Math.min(Math.max(x, half + 2), box.width - half - 2)}, name));
}

function yBound(picture, bound, scale, box) {
  const y = scale.at(bound.value);
  if (!(y >= box.top - 0.5 && y <= box.bottom + 0.5)) return;
  picture.append(
    shape("line", {class: "bound", x1: box.left, x2: box.right, y1: y, y2: y}),
    shape("text", {class: "axis halo", x: box.right - 4, y: y - 5, "text-anchor": "end"},
      shorten(bound.name, box.right - box.left)));
}

// A text as lines that are no wider than asked, cut behind blanks and commas where there are some.
function wrapText(text, width) {
  const lines = [""];
  for (const part of String(text).match(/[^\s,]*[\s,]*/g)) {
    const last = lines[lines.length - 1];
    if (last === "" || textWidth(last + part.trimEnd()) <= width) lines[lines.length - 1] += part;
    else lines.push(part);
  }
  return lines.map((line) => shorten(line.trimEnd(), width));
}

// Where rows with names and values go: beside the plot when there is room, above it otherwise, the
// value behind the name or, where one of the names is too long for that, below it.
function rowLayout(width, names, values, bound) {
  const nameWidth = widest(names) + 12, valueWidth = widest(values) + 10;
  const beside = nameWidth + valueWidth + 260 <= width;
  const below = !beside && names.some((name, index) =>
    textWidth(name) + textWidth(values[index]) + 16 > width);
  const lines = names.map((name) => beside ? [name] : wrapText(name, width - 4));
  const above = beside ? 0 : 16 * (Math.max(...lines.map((one) => one.length)) + (below ? 1 : 0));
  return {beside, below, lines, values, above, step: 26 + above, top: bound ? 26 : 8, width,
    left: beside ? nameWidth : 2, right: beside ? width - valueWidth : width - 6};
}

// The middle of a row's mark.
function rowMiddle(layout, index) {
  return layout.top + index * layout.step + layout.above + 13;
}

function rowText(picture, layout, index) {
  const y = rowMiddle(layout, index), lines = layout.lines[index], value = layout.values[index];
  if (layout.beside) {
    picture.append(
      shape("text", {x: layout.left - 12, y: y + 4, "text-anchor": "end"}, lines[0]),
      shape("text", {class: "value", x: layout.right + 10, y: y + 4}, value));
    return;
  }
  const last = y - 13 - (layout.below ? 16 : 0);
  lines.forEach((line, i) => picture.append(
    shape("text", {class: "halo", x: 2, y: last - 16 * (lines.length - 1 - i)}, line)));
  const left = layout.below ? 2 : layout.width - 2 - textWidth(value);
  const line = layout.below ? y - 13 : last;
  // A bound's line goes on behind a value, where it would be read as a part of it.
  picture.append(
    shape("rect", {class: "back", x: left - 3, y: line - 13, width: textWidth(value) + 6,
      height: 17}),
    shape("text", {class: "value", x: left, y: line}, value));
}

// Stacked bars. rows: {name, colour, parts: [{name, value, opacity, colour}], text}; bound:
// {value, name}.
function bars(parent, options) {
  const rows = options.rows.filter((row) => row.parts.some((part) => isNumber(part.value)));
  if (rows.length === 0) return;
  const total = (row) => row.parts.reduce((sum, part) => sum + Math.max(0, part.value || 0), 0);
  const values = rows.map((row) => row.text || options.write(total(row)));
  figure(parent, options, (width) => {
    const layout = rowLayout(width, rows.map((row) => row.name), values, options.bound);
    const height = layout.top + rows.length * layout.step + 24;
    const picture = canvas(width, height, options.title);
    const box = {left: layout.left, right: layout.right, top: layout.top, width,
      bottom: layout.top + rows.length * layout.step};
    const most = Math.max(...rows.map(total), options.bound ? options.bound.value : 0) || 1;
    const scale = linearScale(0, most, box.left, box.right, width < 500 ? 4 : 7);
    xAxis(picture, scale, options.write, box);
    rows.forEach((row, index) => {
      const y = rowMiddle(layout, index);
      let from = 0;
      for (const part of row.parts) {
        if (!(part.value > 0)) continue;
        const x = scale.at(from);
        from += part.value;
        picture.append(shape("rect", {x, y: y - 8, height: 16, fill: part.colour || row.colour,
          width: Math.max(0.5, scale.at(from) - x), opacity: part.opacity || 1},
        shape("title", {}, `${row.name}, ${part.name}: ${options.write(part.value)}`)));
      }
    });
    if (options.bound && isNumber(options.bound.value)) xBound(picture, options.bound, scale, box);
    rows.forEach((_, index) => rowText(picture, layout, index));
    return picture;
  });
}

// Dots with intervals. rows: {name, value, low, high, colour}; bound: {value, name}; least: the
// smallest range that the axis spans. A row's `beside` is a second, hollow dot of `besideColour`.
function dots(parent, options) {
  const rows = options.rows.filter((row) => isNumber(row.value));
  if (rows.length === 0) return;
  const edges = rows.flatMap((row) => [row.value, row.low, row.high, row.beside])
    .filter(isNumber);
  const bounds = options.bounds || (options.bound ? [options.bound] : []);
  edges.push(...bounds.map((bound) => bound.value));
  let low = Math.min(...edges), high = Math.max(...edges);
  const log = low > 0 && high / low > 8;
  const least = options.least || 0; // of the range that the axis spans
  const margin = log ? 1.1 : Math.max((high - low) * 0.06, (least - (high - low)) / 2, 1e-9);
  if (log) { low /= margin; high *= margin; } else { low -= margin; high += margin; }
  const values = rows.map((row) => options.write(row.value) + (isNumber(row.low) ?
    ` [${options.write(row.low)}, ${options.write(row.high)}]` : ""));
  figure(parent, options, (width) => {
    const layout = rowLayout(width, rows.map((row) => row.name), values, bounds.length > 0);
    const height = layout.top + rows.length * layout.step + 24;
    const picture = canvas(width, height, options.title);
    const box = {left: layout.left + 6, right: layout.right - 6, top: layout.top, width,
      bottom: layout.top + rows.length * layout.step};
    const scale = scaleOf(log, low, high, box.left, box.right, width < 500 ? 4 : 7);
    xAxis(picture, scale, options.write, box);
    for (const bound of bounds) xBound(picture, bound, scale, box);
    rows.forEach((row, index) => {
      const y = rowMiddle(layout, index);
      if (isNumber(row.low) && isNumber(row.high))
        picture.append(shape("line", {x1: scale.at(row.low), x2: scale.at(row.high), y1: y, y2: y,
          stroke: row.colour, "stroke-width": 2.5}));
      if (isNumber(row.beside))
        picture.append(shape("circle", {cx: scale.at(row.beside), cy: y, r: 4, fill: "none",
          stroke: row.besideColour, "stroke-width": 2}));
      picture.append(shape("circle", {cx: scale.at(row.value), cy: y, r: 4.5, fill: row.colour},
        shape("title", {}, `${row.name}: ${values[index]}`)));
      rowText(picture, layout, index);
    });
    return picture;
  });
}

// The frame of lines and points: both axes around what `edges` span.
function plotFrame(width, options, edges) {
  const height = Math.min(460, Math.max(260, Math.round(width * 0.62)));
  const picture = canvas(width, height, options.title);
  const [xs, ys] = edges;
  const pad = (values, log, zero) => {
    const low = Math.min(...values), high = Math.max(...values);
    if (log) return [low / 1.15, high * 1.15];
    const margin = (high - low || Math.abs(high) || 1) * 0.05;
    return [zero && low >= 0 ? 0 : low - margin, high + margin];
  };
  const [xLow, xHigh] = options.xRange || pad(xs, options.xLog, options.xZero);
  const [yLow, yHigh] = options.yRange || pad(ys, options.yLog, options.yZero);
  const parts = Math.max(3, Math.round(height / 70));
  const trial = scaleOf(options.yLog, yLow, yHigh, 0, 1, parts);
  const labels = trial.ticks.map((tick) => tickText(options.yWrite, tick));
  const box = {left: widest(labels) + 10, right: width - 8, top: 12,
    bottom: height - 24, width};
  const x = scaleOf(options.xLog, xLow, xHigh, box.left, box.right, width < 500 ? 4 : 8);
  const y = scaleOf(options.yLog, yLow, yHigh, box.bottom, box.top, parts);
  xAxis(picture, x, options.xWrite, box);
  yAxis(picture, y, options.yWrite, box);
  if (options.bound) yBound(picture, options.bound, y, box);
  return {picture, x, y, box};
}

function usable(log, value) {
  return isNumber(value) && (!log || value > 0);
}

// Whether two lines lie on each other.
function isHidden(one, other) {
  const near = (a, b) => Math.abs(a - b) <= 0.01 * Math.max(Math.abs(a), Math.abs(b));
  return one.points.length === other.points.length && one.points.every((point, i) =>
    near(point[0], other.points[i][0]) && near(point[1], other.points[i][1]));
}

// Lines. series: {name, colour, points: [[x, y], ...], dash}. A line that would hide one before it
// is dashed, so that both are seen.
function lines(parent, options) {
  const series = options.series.map((one) => Object.assign({}, one, {
    points: one.points.filter((point) => usable(options.xLog, point[0]) &&
      usable(options.yLog, point[1])),
  })).filter((one) => one.points.length > 0);
  if (series.length === 0) return;
  const points = series.flatMap((one) => one.points);
  const edges = [points.map((point) => point[0]), points.map((point) => point[1])];
  if (options.bound) edges[1].push(options.bound.value);
  const legend = options.legend || series.map((one) => ({name: one.name, colour: one.colour}));
  figure(parent, Object.assign({}, options, {legend}), (width) => {
    const {picture, x, y} = plotFrame(width, options, edges);
    for (const [index, one] of series.entries()) {
      const hides = series.slice(0, index).some((other) => isHidden(one, other));
      picture.append(shape("polyline", {class: "curve", stroke: one.colour,
        "stroke-dasharray": one.dash ? "5 4" : hides ? "10 10" : null,
        points: one.points.map((point) => `${x.at(point[0])},${y.at(point[1])}`).join(" ")},
      shape("title", {}, one.name)));
      if (one.points.length > 24) continue;
      for (const point of one.points)
        picture.append(shape("circle", {cx: x.at(point[0]), cy: y.at(point[1]), r: 3,
          fill: one.colour}, shape("title", {},
          `${one.name}: ${options.xWrite(point[0])}, ${options.yWrite(point[1])}`)));
    }
    return picture;
  });
}

// A place for a label where it covers no point and no other label; none is no place.
function findPlace(point, size, taken, box) {
  for (const [dx, dy] of [[9, 4], [-9 - size, 4], [-size / 2, -9], [-size / 2, 18], [9, -8],
    [9, 16], [-9 - size, -8], [-9 - size, 16]]) {
    const place = {left: point.x + dx, right: point.x + dx + size, top: point.y + dy - 11,
      bottom: point.y + dy + 2};
    if (place.left < 0 || place.right > box.width || place.top < box.top ||
      place.bottom > box.bottom) continue;
    if (taken.some((other) => place.left < other.right && other.left < place.right &&
      place.top < other.bottom && other.top < place.bottom)) continue;
    return place;
  }
  return null;
}

// Points with names. points: {name, x, y, low, high, colour}.
function points(parent, options) {
  const rows = options.points.filter((row) => usable(options.xLog, row.x) &&
    usable(options.yLog, row.y));
  if (rows.length === 0) return;
  const edges = [rows.map((row) => row.x),
    rows.flatMap((row) => [row.y, row.low, row.high]).filter((v) => usable(options.yLog, v))];
  figure(parent, options, (width) => {
    const {picture, x, y, box} = plotFrame(width, options, edges);
    const spots = rows.map((row) => ({x: x.at(row.x), y: y.at(row.y)}));
    const taken = spots.map((spot) => ({left: spot.x - 4, right: spot.x + 4, top: spot.y - 4,
      bottom: spot.y + 4}));
    rows.forEach((row, index) => {
      const spot = spots[index];
      if (usable(options.yLog, row.low) && usable(options.yLog, row.high))
        picture.append(shape("line", {x1: spot.x, x2: spot.x, y1: y.at(row.low),
          y2: y.at(row.high), stroke: row.colour, "stroke-width": 1.5}));
      picture.append(shape("circle", {cx: spot.x, cy: spot.y, r: 4, fill: row.colour},
        shape("title", {}, `${row.name}: ${options.xWrite(row.x)}, ${options.yWrite(row.y)}`)));
    });
    rows.forEach((row, index) => {
      const place = findPlace(spots[index], textWidth(row.name), taken, box);
      if (!place) return;
      taken.push(place);
      picture.append(shape("text", {class: "halo", x: place.left, y: place.bottom - 2}, row.name));
    });
    return picture;
  });
}

// ---- words and tables ----

function facts(parent, rows) {
  const list = html("dl");
  for (const [name, value] of rows) {
    if (value === undefined || value === null || value === "" || value === "-") continue;
    list.append(html("dt", {}, name), html("dd", {}, String(value)));
  }
  if (list.children.length > 0) parent.append(list);
}

function note(parent, text) {
  parent.append(html("p", {class: "note"}, text));
}

function heading(parent, text) {
  parent.append(html("h3", {}, text));
}

function isEmpty(cell) {
  const text = cell !== null && typeof cell === "object" ? cell.text : cell;
  return text === undefined || text === null || text === "" || text === "-";
}

// columns: {name, class}; a cell is a text, or {text, class, colour}. What no row has is left out.
function table(parent, columns, rows, summary) {
  if (rows.length === 0) return;
  const kept = columns.map((_, index) => rows.some((row) => !isEmpty(row[index])));
  columns = columns.filter((_, index) => kept[index]);
  rows = rows.map((row) => row.filter((_, index) => kept[index]));
  if (columns.length === 0) return;
  const body = html("tbody");
  for (const row of rows) {
    body.append(html("tr", {}, ...row.map((cell, index) => {
      const one = cell !== null && typeof cell === "object" ? cell : {text: cell};
      const node = html("td", {class: one.class || columns[index].class});
      if (index === 0 && String(one.text).length > 26) node.classList.add("wrap");
      if (one.colour) {
        const mark = html("i", {class: "swatch"});
        mark.style.background = one.colour;
        node.append(mark);
      }
      node.append(one.text === undefined || one.text === null ? "-" : String(one.text));
      return node;
    })));
  }
  const whole = html("div", {class: "wide"}, html("table", {}, html("thead", {}, html("tr", {},
    ...columns.map((column) => html("th", {class: column.class === "long" ? "left" : column.class},
      column.name)))), body));
  if (!summary) {
    parent.append(whole);
    return;
  }
  parent.append(html("details", {}, html("summary", {}, summary), whole));
}

// ---- what all kinds share ----

function column(name, kind) {
  return {name, class: kind};
}

function rowsOf(value) {
  return Array.isArray(value) ? value.filter((row) => row !== null && typeof row === "object" &&
    !Array.isArray(row)) : [];
}

function figures(parent) {
  const grid = html("div", {class: "figures"});
  parent.append(grid);
  return grid;
}

function headFacts(parent, document, more) {
  facts(parent, [...more, ["command", document.command], ["machine", machineOf(document)],
    ["version", document.version], ["date", document.date]]);
}

function machineOf(document) {
  if (document.machine !== null && typeof document.machine === "object")
    return Object.values(document.machine).join(", ");
  return [document.host, document.kernel, document.machine].filter(Boolean).join(", ");
}

function busyWarning(parent, busy) {
  if (busy) parent.append(html("p", {class: "warning"},
    "The machine was busy while this was measured."));
}
