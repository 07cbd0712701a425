// SPDX-License-Identifier: Apache-2.0
// kinds.js - finds what draws a document by its kind. Of kinds that have no such function any list
// of rows becomes a table, and its most telling column a figure.
"use strict";

// How a number is written, from the end of its key.
function writerOf(key) {
  if (/(^|_)(ratio|of_ideal|times)(_|$)/.test(key)) return format.ratio;
  if (/bytes_per_s(_|$)/.test(key)) return format.rate;
  if (/_ns(_|$)/.test(key)) return (value) => format.seconds(value * 1e-9);
  if (/(^|_)(s|seconds)(_(mean|min|max|p\d+|median))?$/.test(key)) return format.seconds;
  if (/bytes(_|$)/.test(key) && !/per_entry/.test(key)) return format.bytes;
  return (value) => Number.isInteger(value) ? String(value) : format.plain(value);
}

function cellOf(key, value) {
  if (isNumber(value)) return writerOf(key)(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value === null || value === undefined) return "-";
  if (Array.isArray(value) && value.every((one) => one === null || typeof one !== "object"))
    return value.map((one) => cellOf(key, one)).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// A key as the head of a column: its unit stands with each number.
function headOf(key) {
  return key.replace(/(?<!per)_(s|ns|seconds)(?=_|$)/, "").replaceAll("_", " ");
}

function isText(rows, key) {
  return rows.every((row) => row[key] === undefined || row[key] === null ||
    typeof row[key] === "string");
}

const rowsShown = 2000;

function genericTable(parent, title, rows, folded) {
  if (rows.length === 0) return;
  const keys = unique(rows.flatMap((row) => Object.keys(row)));
  const texts = new Set(keys.filter((key) => isText(rows, key)));
  const ordered = [...keys.filter((key) => texts.has(key)), ...keys.filter((key) =>
    !texts.has(key))];
  const columns = ordered.map((key) => column(headOf(key), !texts.has(key) ?
    undefined : rows.some((row) => String(row[key] || "").length > 60) ? "long" : "left"));
  const cells = rows.slice(0, rowsShown).map((row) => ordered.map((key) => {
    const cell = {text: cellOf(key, row[key])};
    if (/^(policy|against|device)$/.test(key) && row[key]) cell.colour = colourOf(row[key]);
    return cell;
  }));
  if (!folded) heading(parent, title);
  table(parent, columns, cells, folded ? title : "");
  if (rows.length > rowsShown)
    note(parent, `The first ${rowsShown} of ${rows.length} rows; the document holds all.`);
}

function intervalOf(row, key) {
  const pair = row[`${key}_95`] || row[`${key}_interval`];
  if (Array.isArray(pair)) return pair;
  return [row[`${key}_low`] ?? row[`${key}_min`], row[`${key}_high`] ?? row[`${key}_max`]];
}

// The column that a reader would look at first: a ratio, then seconds, then rates, then the first.
function tellingKey(rows) {
  const keys = Object.keys(rows[0]).filter((key) => rows.some((row) => isNumber(row[key])) &&
    !/(^|_)(seed|seeds|id|n)$|_(95|low|high|min|max)$/.test(key));
  return keys.find((key) => /(^|_)ratio/.test(key)) ||
    keys.find((key) => /(^|_)(s|seconds|ns)(_|$)/.test(key) && !/per_s/.test(key)) ||
    keys.find((key) => /per_s/.test(key)) || keys[0];
}

function genericFigure(parent, title, rows) {
  if (rows.length < 2 || rows.length > 200) return;
  const key = tellingKey(rows);
  if (!key) return;
  const texts = Object.keys(rows[0]).filter((name) => isText(rows, name));
  const varied = texts.filter((name) => unique(rows.map((row) => row[name])).length > 1);
  const words = rows.map((row) => varied.slice(0, 3).map((name) => row[name]).filter(Boolean)
    .join(", "));
  const told = unique(words).length === rows.length;
  const nameOf = (row, index) => [words[index], told ? "" : rowName(rows, row, key)]
    .filter(Boolean).join(", ") || String(index + 1);
  const colourKey = texts.find((name) => name === "policy") || varied[0];
  const ratio = /(^|_)ratio/.test(key);
  dots(parent, {title: `${title}: ${headOf(key)}`, xTitle: key.replaceAll("_", " "),
    write: writerOf(key), bound: ratio ? {value: 1, name: "1"} : null, least: ratio ? 0.1 : 0,
    rows: rows.map((row, index) => {
      const [low, high] = intervalOf(row, key);
      return {name: nameOf(row, index), value: row[key], low, high,
        colour: colourOf(colourKey ? row[colourKey] : title)};
    })});
}

// Rows with the same words are told apart by their first numbers.
function rowName(rows, row, key) {
  return Object.keys(row).filter((name) => name !== key && isNumber(row[name]) &&
    unique(rows.map((one) => one[name])).length > 1).slice(0, 2).map((name) =>
    `${headOf(name)} ${cellOf(name, row[name])}`).join(", ");
}

function drawGeneric(parent, document, verdict, prefix = "") {
  const plain = [], nested = [];
  for (const [key, value] of Object.entries(document)) {
    const rows = rowsOf(value);
    if (rows.length > 0) nested.push([key, rows]);
    else if (value !== null && typeof value === "object" && !Array.isArray(value))
      nested.push([key, value]);
    else if (key !== "schema") plain.push([key.replaceAll("_", " "), cellOf(key, value)]);
  }
  facts(parent, plain);
  for (const [key, value] of nested) {
    const title = (prefix + key).replaceAll("_", " ");
    if (Array.isArray(value)) {
      genericFigure(parent, title, value);
      genericTable(parent, title, value);
    } else {
      heading(parent, title);
      drawGeneric(parent, value, verdict, `${prefix}${key}, `);
    }
  }
}

// ---- all ----

// Title, words and figures of a kind.
const kinds = {
  "replay": ["Replay", verdictReplay, drawReplay],
  "size": ["How much DRAM and SSD", verdictSize, drawSize],
  "compare": ["Comparison at equal quality", verdictCompare, drawCompare],
  "loop": ["The whole loop on a model", verdictLoop, drawLoop],
  "bench-grid": ["Grid of workloads", verdictGrid, drawGrid],
  "bench-live": ["Simulator beside the store", verdictBenchLive, drawLive],
  "bench-codecs": ["Codecs", verdictBenchCodecs, drawCodecs],
  "bench-stripe": ["Striping", verdictBenchStripe, drawStripe],
  "bench-policy": ["Decision engine", verdictBenchPolicy, drawGeneric],
  "bench-adaptcache": ["AdaptCache's experiment", null, drawGeneric],
  "profile": ["Profile", verdictProfile, drawProfile],
  "profile-quality": ["Quality", verdictQuality, drawQuality],
};

// The KIND of "kvterrace-KIND-1"; "" of anything else.
function kindOf(document) {
  const found = /^kvterrace-(.+)-\d+$/s.exec(textOf(document, "schema"));
  return found ? found[1] : "";
}

// A document that is not what its kind says is drawn as one of no kind.
function drawDocument(section, entry, index) {
  const kind = kindOf(entry.document);
  const [name, words, draw] = Object.hasOwn(kinds, kind) ? kinds[kind] :
    [kind || "Document", null, drawGeneric];
  const verdict = verdictOf(entry.document, kind, words);
  const title = html("h2", {}, `${name} `, html("small", {}, entry.name));
  const count = redraws.length;
  drawVerdict(document.getElementById("verdicts"), name, entry.name, index, verdict);
  section.append(title);
  try {
    draw(section, entry.document, verdict);
  } catch (error) {
    redraws.length = count;
    section.replaceChildren(title);
    note(section, "This document lacks parts that its kind has; it is drawn as it is.");
    drawGeneric(section, entry.document, verdict);
  }
  return name;
}

const names = [...document.querySelectorAll("script.data")].map((data, index) =>
  drawDocument(document.getElementById(`document-${index}`), JSON.parse(data.textContent), index));
document.title = `kvterrace: ${names[0]}${names.length > 1 ? ` and ${names.length - 1} more` : ""}`;

function redraw() {
  for (const one of redraws) one();
}

redraw();
window.addEventListener("resize", redraw);
document.addEventListener("toggle", redraw, true);
