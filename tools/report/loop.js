// SPDX-License-Identifier: Apache-2.0
// loop.js - what is drawn of the whole loop on a real model: times and answers of the contenders,
// forms by tier, quality by form, predicted beside measured losses and seconds.
"use strict";

const loopTiers = ["hbm", "dram", "ssd"];

// Policies have the colours that they have everywhere; what stores one form or a mix has others.
const loopColours = ["#3aa3b8", "#b3419a", "#c2a100", "#0f8578", "#d0433c", "#8b5cf6"];

function loopGroups(results) {
  const names = unique(results.map((row) => word(row.contender)));
  const single = names.filter((name) => name.includes("+"));
  return names.map((name) => {
    const runs = results.filter((row) => word(row.contender) === name);
    const colour = name.includes("+") ? loopColours[single.indexOf(name) % loopColours.length] :
      colourOf(name);
    return {name, runs, colour,
      mean: (read) => mean(runs.map((run) => {
        const value = read(run);
        return isNumber(value) ? value : NaN;
      }))};
  });
}

// The forms of a contender over its seeds: hits and stored entries add up, the rest are means by
// hits.
function loopForms(group) {
  const rows = group.runs.flatMap((run) => rowsOf(run.forms));
  return unique(rows.map((row) => String(row.form))).map((name) => {
    const of = rows.filter((row) => String(row.form) === name);
    const sum = (read) => of.reduce((total, row) => total + (read(row) || 0), 0);
    const hits = sum((row) => (row.hits || {}).total);
    const weighed = (key) => {
      const known = of.filter((row) => isNumber(row[key]));
      const weight = known.reduce((total, row) => total + ((row.hits || {}).total || 0), 0);
      return weight > 0 ? known.reduce((total, row) => total + row[key] * row.hits.total, 0) /
        weight : NaN;
    };
    return {name, of, hits, weighed, predicted: mean(of.map((row) => row.loss_predicted)),
      size: mean(of.map((row) => row.stored_share)),
      tier: (tier) => sum((row) => (row.hits || {})[tier]),
      stored: (tier) => sum((row) => (row.stored || {})[tier]),
      same: sum((row) => row.same_answers)};
  });
}

function loopFacts(parent, document) {
  const model = document.model || {}, load = document.workload || {};
  const tiers = (rowsOf(document.results)[0] || {}).capacity_bytes || {};
  headFacts(parent, document, [
    ["model", `${word(model.name)}: ${format.whole(model.parameters)} parameters, ` +
      `${word(model.layers)} layers x ${word(model.kv_heads)} KV heads x ${word(model.head_dim)}`],
    ["workload", `${word(load.name)}: ${format.whole(load.requests)} requests over ` +
      `${format.whole(load.contexts)} contexts`],
    ...rowsOf(document.classes).map((row) => [`class ${row.class}`,
      `${format.whole(row.contexts)} contexts, ${format.whole(row.tokens)} tokens, ` +
      `${format.bytes(row.kv_bytes)} of KV, prefilled in ${format.seconds(row.prefill_s)}`]),
    ["tiers", loopTiers.filter((tier) => tiers[tier] > 0).map((tier) =>
      `${tier} ${format.bytes(tiers[tier])}`).join(", ")],
    ["limits", `loss at most ${word(document.loss_limit)}, alpha ${format.alpha(
      document)}`],
  ]);
}

function loopTimes(parent, groups) {
  const parts = [["prefill", "prefill_s_mean", 1], ["reading and decoding", "load_s_mean", 0.7],
    ["the question", "question_s_mean", 0.45], ["waiting", "wait_s_mean", 0.25]];
  bars(parent, {
    title: "Mean time to first token, measured", xTitle: "seconds per request",
    write: format.seconds,
    legend: parts.map((part) => ({name: part[0], colour: "#6b7280", opacity: part[2]})),
    rows: groups.map((group) => ({name: group.name, colour: group.colour,
      parts: parts.map((part) => ({name: part[0], opacity: part[2],
        value: group.mean((run) => run[part[1]])}))})),
  });
}

function loopQuality(parent, groups) {
  points(parent, {
    title: "Answers beside time", xTitle: "mean time to first token",
    yTitle: "mean ROUGE-L against the exact answers", xWrite: format.seconds,
    yWrite: format.ratio,
    points: groups.map((group) => ({name: group.name, colour: group.colour,
      x: group.mean((run) => run.ttft_s_mean), y: group.mean((run) => run.rouge_l)})),
  });
}

function loopHits(parent, groups) {
  const shade = {hbm: 1, dram: 0.65, ssd: 0.35};
  bars(parent, {
    title: "Requests served from the store, by tier", xTitle: "share of the requests",
    write: format.share,
    legend: loopTiers.map((tier) => ({name: tier, colour: "#6b7280", opacity: shade[tier]})),
    rows: groups.map((group) => ({name: group.name, colour: group.colour,
      parts: loopTiers.map((tier) => ({name: tier, opacity: shade[tier],
        value: group.mean((run) => (run.hits || {})[tier] / run.requests)}))})),
  });
}

function loopLosses(parent, groups) {
  const rows = groups.flatMap((group) => loopForms(group).filter((form) => form.hits > 0 &&
    form.weighed("loss") > 0).map((form) => ({name: `${group.name}, ${form.name}`,
    value: form.weighed("loss"), low: form.weighed("loss_low"), high: form.weighed("loss_high"),
    colour: group.colour, beside: isNumber(form.predicted) ? form.predicted : undefined,
    besideColour: "#111827"})));
  dots(parent, {
    title: "Loss by variant: measured, and predicted (hollow)", xTitle: "1 - ROUGE-L of the hits",
    write: (value) => format.plain(Math.max(0, value)), rows,
    caption: "Intervals of 95 % over the contexts that the variant served.",
  });
}

function loopTable(parent, groups) {
  const columns = ["contender", "hits", "TTFT", "p50", "p99", "waiting", "loading", "prefill",
    "question", "ROUGE-L", "F1", "same answers", "loads off by", "rho"];
  table(parent, columns.map((name, index) => column(name, index === 0 ? "left" : undefined)),
    groups.map((group) => {
      const of = (key) => group.mean((run) => run[key]);
      return [{text: group.name, colour: group.colour},
        format.share(group.mean((run) => (run.hits || {}).total / run.requests)),
        format.seconds(of("ttft_s_mean")), format.seconds(of("ttft_s_p50")),
        format.seconds(of("ttft_s_p99")), format.seconds(of("wait_s_mean")),
        format.seconds(of("load_s_mean")), format.seconds(of("prefill_s_mean")),
        format.seconds(of("question_s_mean")), fixed(of("rouge_l"), 4), fixed(of("f1"), 4),
        format.share(group.mean((run) => run.same_answers / run.requests)),
        format.share(of("load_error_p50")), format.ratio(of("rho"))];
    }));
}

function loopFormTable(parent, groups) {
  heading(parent, "Variants by tier, and what they lost");
  const columns = ["contender", "variant", "size", ...loopTiers.map((tier) => `hits ${tier}`),
    ...loopTiers.map((tier) => `stored ${tier}`), "ROUGE-L", "loss", "interval", "predicted",
    "load", "predicted load"];
  const four = (value) => isNumber(value) ? value.toFixed(4) : "-";
  table(parent, columns.map((name, index) => column(name, index < 2 ? "left" : undefined)),
    groups.flatMap((group) => loopForms(group).map((form) => [
      {text: group.name, colour: group.colour}, form.name, format.share(form.size),
      ...loopTiers.map((tier) => String(form.tier(tier))),
      ...loopTiers.map((tier) => String(form.stored(tier))), four(form.weighed("rouge_l")),
      four(form.weighed("loss")), isNumber(form.weighed("loss_low")) ?
        `${four(form.weighed("loss_low"))} to ${four(form.weighed("loss_high"))}` : "-",
      four(form.predicted), format.seconds(form.weighed("load_s_p50")),
      format.seconds(form.weighed("load_predicted_s_p50"))])));
}

function drawLoop(parent, document) {
  const groups = loopGroups(rowsOf(document.results));
  if (groups.length === 0) throw new Error("no runs");
  loopFacts(parent, document);
  const grid = figures(parent);
  loopTimes(grid, groups);
  loopQuality(grid, groups);
  loopHits(grid, groups);
  loopLosses(grid, groups);
  loopTable(parent, groups);
  loopFormTable(parent, groups);
  genericTable(parent, "The ladder", rowsOf(document.ladder), true);
}
