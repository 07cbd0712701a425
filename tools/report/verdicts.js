// SPDX-License-Identifier: Apache-2.0
// verdicts.js - what a document means, in words: {"sentences": [{"state", "text"}], "next"}. A
// state is one of "ahead", "level" and "behind" of policies, "met" and "missed" of what is asked,
// "warning", and "note". A document may hold anything: what is absent or of another type is left
// out.
"use strict";

function part(object, key) {
  const sound = object !== null && typeof object === "object" && Object.hasOwn(object, key);
  return sound ? object[key] : undefined;
}

function numberOf(object, key, otherwise = NaN) {
  const value = part(object, key);
  return isNumber(value) ? value : otherwise;
}

function textOf(object, key) {
  const value = part(object, key);
  return typeof value === "string" ? value : "";
}

const listOf = (object, key) => rowsOf(part(object, key));
const fixed = (value, count) => isNumber(value) ? value.toFixed(count) : "-";
const small = (value) => isNumber(value) ? value.toExponential(2) : "-";
const whole = (value) => fixed(value, 0);
const range = (low, high) => `[${fixed(low, 3)}, ${fixed(high, 3)}]`;
const sumOf = (rows, key) => rows.reduce((sum, row) => sum + numberOf(row, key, 0), 0);
const numbersOf = (rows, key) => rows.map((row) => numberOf(row, key)).filter(isNumber);

// Seconds with more digits than a figure has.
function exactSeconds(value) {
  if (!isNumber(value)) return "-";
  if (value < 1e-6) return `${whole(value * 1e9)} ns`;
  if (value < 1e-3) return `${fixed(value * 1e6, 1)} us`;
  return value < 1 ? `${fixed(value * 1e3, 2)} ms` : `${fixed(value, 3)} s`;
}

class Verdict {
  constructor() {
    Object.assign(this, {sentences: [], next: ""});
  }
  say(state, text) { this.sentences.push({state, text}); }
  // The earlier step is the more urgent one.
  then(text) { this.next = this.next || text; }
}

// ---- replays: the engine beside the strongest of the others, seed by seed ----

const ours = "utility";
const qualityStep = 1e-4; // a smaller difference of mean quality is none
const requestsForTail = 500; // below, a 99th percentile is one or two requests
const seedsAsked = 5; // fewer make wide intervals
const told = [
  {key: "ttft_s_mean", name: "Mean time to first token", short: "the mean"},
  {key: "ttft_s_p50", name: "Median", short: "the median"},
  {key: "ttft_s_p99", name: "99th percentile", short: "the 99th percentile"},
];

// Quantiles of Student's distribution for a two-sided interval of 95 %, from one degree of freedom.
const quantiles = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201,
  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060,
  2.056, 2.052, 2.048, 2.045, 2.042];

// The geometric mean of the ratios over the seeds that both ran; its interval is Student's, on
// logarithms. One seed has no interval, and no sentence then claims more than an order.
function pairOf(results, other, key, name = "policy") {
  const of = (policy) => results.filter((row) => textOf(row, name) === policy);
  const others = of(other), pairs = [];
  for (const row of of(ours)) {
    const seed = JSON.stringify(part(row, "seed"));
    const a = numberOf(row, key, 0);
    const b = numberOf(others.find((one) => JSON.stringify(part(one, "seed")) === seed), key, 0);
    if (a > 0 && b > 0) pairs.push([a, b]);
  }
  const count = pairs.length, logs = pairs.map(([a, b]) => Math.log(a / b));
  const middle = mean(logs);
  const variance = logs.reduce((sum, step) => sum + (step - middle) ** 2, 0) / (count - 1);
  const reach = count < 2 ? NaN : quantiles[Math.min(count, quantiles.length + 1) - 2] *
    Math.sqrt(variance / count);
  return {other, key, seeds: count, ours: mean(pairs.map(([a]) => a)),
    others: mean(pairs.map(([, b]) => b)), ratio: Math.exp(middle),
    low: Math.exp(middle - reach), high: Math.exp(middle + reach)};
}

// Policies but ours and the oracle, in the order in which they stand.
function rivalsOf(results) {
  return unique(results.map((row) => textOf(row, "policy"))).filter((name) =>
    name !== ours && name !== "oracle");
}

// The other policy with the lowest value; an empty store only where there is no other.
function strongest(results, key) {
  const names = rivalsOf(results);
  for (const some of [names.filter((name) => name !== "none"), names]) {
    const pairs = some.map((name) => pairOf(results, name, key)).filter((pair) => pair.seeds > 0);
    if (pairs.length > 0) return pairs.reduce((a, b) => b.ratio > a.ratio ? b : a);
  }
  return null;
}

function meanOf(results, policy, key, name = "policy") {
  const values = numbersOf(results.filter((row) => textOf(row, name) === policy), key);
  return values.length > 0 ? mean(values) : NaN;
}

// What may be said of a pair: an order needs an interval that leaves out 1, and quality.
function stateOf(pair, given) {
  if (pair.seeds < 2) return "note";
  if (pair.low > 1) return "behind";
  if (pair.high >= 1) return "level";
  return given > qualityStep ? "note" : "ahead";
}

function orderOf(state, pair) {
  const words = {ahead: "is ahead of", behind: "is behind", level: "cannot be told from"};
  return words[state] || (pair.ratio > 1 ? "takes longer than" : pair.ratio < 1 ?
    "takes less than" : "takes as long as");
}

// The first sentence says whom it is compared with, over what, and at which quality; the others
// say what differs from it.
function sayMetric(results, metric, verdict, first) {
  const pair = strongest(results, metric.key);
  if (!pair) return "";
  const quality = meanOf(results, ours, "quality_mean");
  const other = meanOf(results, pair.other, "quality_mean");
  const given = isNumber(quality) && isNumber(other) ? other - quality : 0;
  const state = stateOf(pair, given);
  const interval = pair.seeds > 1 ? ` ${range(pair.low, pair.high)} over ${pair.seeds} seeds` :
    ", one seed, so without an interval";
  const paid = isNumber(quality) && isNumber(other) && (first === "" || given > qualityStep) ?
    `; quality ${fixed(quality, 4)} against ${fixed(other, 4)}` +
    (given > qualityStep ? ", so it pays with quality" : "") : "";
  const whom = pair.other === first ? pair.other : `${pair.other}, the strongest of the others`;
  const sure = pair.seeds > 1 || first === "" ? interval : "";
  verdict.say(state, `${metric.name}: ${ours} ${orderOf(state, pair)} ${whom}: ` +
    `${exactSeconds(pair.ours)} against ${exactSeconds(pair.others)}, ` +
    `ratio ${fixed(pair.ratio, 3)}${sure}${paid}.`);
  if (state === "behind")
    verdict.then(`Keep store.policy = ${pair.other} for this workload, or give utility's tiers ` +
      "another size and replay again.");
  return state;
}

function sayMetrics(document, results, verdict) {
  const requests = numberOf(part(document, "workload"), "requests", 0);
  const tail = requests >= requestsForTail;
  const metrics = tail ? told : told.slice(0, 2);
  const best = strongest(results, metrics[0].key);
  const states = metrics.map((metric, i) => sayMetric(results, metric, verdict,
    i > 0 && best ? best.other : ""));
  const behind = metrics.filter((metric, i) => states[i] === "behind");
  const median = strongest(results, "ttft_s_p50"), seeds = median ? median.seeds : 0;
  verdict.ratios = rivalsOf(results).flatMap((name) => metrics.map((metric) =>
    pairOf(results, name, metric.key))).filter((pair) => pair.seeds > 0).map((pair) =>
    ({policy: pair.other, metric: pair.key, ratio: pair.ratio, seeds: pair.seeds,
      low: isNumber(pair.low) ? pair.low : null, high: isNumber(pair.high) ? pair.high : null}));
  if (behind.length > 0)
    verdict.say("behind", `Where it is behind: ${behind.map((one) => one.short).join(", ")}.`);
  else if (states.some((state) => state !== "" && state !== "note"))
    verdict.say("note", `Where it is behind: nowhere that ${seeds} seeds can tell.`);
  if (!tail) verdict.say("note", `${whole(requests)} requests are too few for a 99th percentile.`);
  if (seeds > 0 && seeds < seedsAsked)
    verdict.then(`Run again with --seeds 10: ${seeds === 1 ? "1 seed gives no interval" :
      `${seeds} seeds give wide intervals`}.`);
  if (seeds === 0)
    verdict.then("Run again with rivals: --policy none,lru,lru-leaf,gdsf,utility.");
}

// Whether a cache is worth it at all.
function sayNone(results, verdict) {
  const pair = pairOf(results, "none", "ttft_s_mean");
  if (pair.seeds === 0 || rivalsOf(results).length < 2) return;
  const state = stateOf(pair, 0);
  verdict.say(state, `Without a cache: ${ours} ${orderOf(state, pair)} none, ` +
    `${exactSeconds(pair.ours)} against ${exactSeconds(pair.others)}, ratio ` +
    `${fixed(pair.ratio, 3)}${pair.seeds > 1 ? ` ${range(pair.low, pair.high)}` : ""}.`);
}

// What hosts gained by the tier that they share.
function saySharing(results, verdict) {
  const shared = results.filter((row) => textOf(row, "policy") === ours).map((row) =>
    part(row, "hosts")).filter((hosts) => numberOf(hosts, "count", 0) > 1);
  if (shared.length === 0) return;
  const found = mean(shared.map((hosts) => numberOf(hosts, "found_block_ratio", 0)));
  const elsewhere = mean(shared.map((hosts) => numberOf(hosts, "remote_block_ratio", 0)));
  verdict.say("note", `Sharing: of 100 uses of blocks ${ours} finds ${fixed(100 * found, 1)}, ` +
    `${fixed(100 * elsewhere, 1)} of them on other hosts; without the shared tier at most ` +
    `${fixed(100 * (found - elsewhere), 1)} would be found.`);
  verdict.then("Replay without tier.remote.capacity: the difference is what sharing is worth.");
}

function sayOverload(results, verdict) {
  const rows = results.filter((row) => part(row, "ttft_s_mean") === null);
  if (rows.length === 0) return;
  const most = Math.max(0, ...numbersOf(rows, "rho"), ...numbersOf(rows, "rho_peak"));
  verdict.say("warning", `No mean exists for ${unique(rows.map((row) => textOf(row, "policy")))
    .join(", ")}: the offered load reaches ${fixed(most, 2)} of the servers, so that the queue ` +
    "grows as long as it lasts.");
  verdict.then("Lower workload.rate or raise replay.servers until every peak rho stays below 1.");
}

// The share of what could be saved at most, and how much that is.
function sayBound(results, verdict) {
  const bound = meanOf(results, ours, "bound_saved_s_per_request");
  const saved = meanOf(results, ours, "achieved_saved_s_per_request");
  if (!isNumber(saved) || !(bound > 0)) return;
  verdict.say("note", "Distance: no policy that keeps an entry's variant between two uses can " +
    `save more than ${exactSeconds(bound)} a request; utility saves ${exactSeconds(saved)}, ` +
    `${fixed(100 * saved / bound, 1)} % of that.`);
}

// A share of the processors from which on other programs are named, as in tools/command.
const othersShare = 0.1;

function sayOthers(document, verdict) {
  const share = numberOf(document, "others_share", 0);
  if (!(share >= othersShare)) return;
  verdict.say("warning", `Other programs took ${fixed(100 * share, 0)} % of the processors while ` +
    "this ran: its times are too long by what that cost.");
  verdict.then("Run it again when the machine is quiet.");
}

function sayLive(results, verdict) {
  const rows = results.filter((row) => textOf(row, "mode") === "live");
  const wrong = sumOf(rows, "wrong_bytes");
  const agree = rows.every((row) => part(row, "moves_match") !== false);
  const sound = wrong === 0 && agree;
  verdict.say(sound ? "note" : "warning", `Bytes: ${whole(sumOf(rows, "verified_gets"))} gets ` +
    `were compared with what was put, ${whole(wrong)} gave back wrong bytes; the moves ` +
    `${agree ? "agree with" : "differ from"} the store's counters.`);
  if (!sound) verdict.then("Keep the command and its seed, and report this as a defect.");
}

// The policy with the lowest mean, in a run without the engine.
function sayLowest(results, verdict) {
  const means = rivalsOf(results).map((name) => ({name, value: meanOf(results, name,
    "ttft_s_mean")})).filter((one) => isNumber(one.value));
  if (means.length > 0) {
    const lowest = means.reduce((a, b) => b.value < a.value ? b : a);
    verdict.say("note", `Of these policies ${lowest.name} has the lowest mean time to first ` +
      `token, ${exactSeconds(lowest.value)}.`);
  }
  verdict.then("Run again with utility among the policies: --policy " +
    "none,lru,lru-leaf,gdsf,utility.");
}

function verdictReplay(document, verdict) {
  const results = listOf(document, "results");
  if (results.length === 0) return;
  const live = results.some((row) => textOf(row, "mode") === "live");
  if (part(document, "profile_busy") === true) {
    verdict.say("warning", "The machine was busy while its profile was measured: these times are " +
      "too uncertain to compare anything by.");
    verdict.then("Measure the profile again when the machine is quiet.");
  }
  if (live) sayLive(results, verdict);
  sayOthers(document, verdict);
  sayOverload(results, verdict);
  if (results.some((row) => textOf(row, "policy") === ours)) {
    sayMetrics(document, results, verdict);
    sayNone(results, verdict);
    saySharing(results, verdict);
    sayBound(results, verdict);
  } else {
    sayLowest(results, verdict);
  }
  verdict.then(live ? "Run the policies in the other order: a difference counts when it repeats." :
    "Run the same workload on this machine's devices: --mode live.");
}

// ---- comparisons ----

const rowsNamed = 5;

function verdictCompare(document, verdict) {
  const set = part(document, "configuration"), held = numberOf(set, "capacity_over_footprint", 0);
  const rows = ["baselines", "mixes", "footprint"].flatMap((table) =>
    listOf(document, table).map((row) => ({...row, table})));
  const count = (state) => rows.filter((row) => row.verdict === state).length;
  const rated = rows.filter((row) => isNumber(row.ratio));
  const lost = rows.filter((row) => row.verdict === "lose");
  if (rows.length === 0) return;
  verdict.say(lost.length === 0 ? "ahead" : "note", "At equal or better quality the engine is " +
    `ahead in ${count("win")} of ${rows.length} comparisons, level in ${count("tie")} and behind ` +
    `in ${lost.length} (mean time to first token, 95 % intervals over ` +
    `${whole(numberOf(set, "seeds", 0))} seeds); ${count("unmatched")} have no match and ` +
    `${count("unstable")} no mean.`);
  if (held >= 1) {
    verdict.say("warning", `The tiers hold ${fixed(held, 2)} times the raw bytes of the ` +
      "workload: nothing has to leave, so that these ratios say little about policies.");
    verdict.then("Replay more of the workload, or set smaller tier capacities.");
  }
  if (rated.length > 0) {
    const hardest = rated.reduce((a, b) => b.ratio > a.ratio ? b : a);
    const least = Math.min(...rated.map((row) => row.ratio));
    verdict.say("note", `Its ratios lie from ${fixed(least, 3)} to ${fixed(hardest.ratio, 3)}; ` +
      `the strongest rival is ${textOf(hardest, "against")}. Medians and 99th percentiles are ` +
      "not part of this comparison.");
  }
  for (const row of lost.slice(0, rowsNamed)) {
    const interval = Array.isArray(row.ratio_95) ? row.ratio_95 : [];
    verdict.say("behind", `Against ${textOf(row, "against")} (${row.table}, SSD at ` +
      `${Number((numberOf(row, "ssd_bytes_per_s", 0) * 1e-9).toPrecision(3))} GB/s): ` +
      `${textOf(row, "ours")} takes ${fixed(row.ratio, 3)} ${range(...interval)} of its mean ` +
      `time to first token, at quality ${fixed(row.our_quality_mean, 4)} against ` +
      `${fixed(row.quality_mean, 4)}.`);
  }
  if (lost.length === 0)
    verdict.say("note", "Where it is behind: in none of these comparisons.");
  else if (lost.length > rowsNamed)
    verdict.say("behind", `It is behind in ${lost.length - rowsNamed} more comparisons, which ` +
      "the tables name.");
  if (part(set, "quick") === true)
    verdict.then("Run again without --quick: coarse grids and 3 seeds decide little.");
  verdict.then(lost.length > 0 ? "Replay the cases where it is behind with --mode live before " +
    "choosing a policy." : "Compare them on a trace of your own: lab/compare.py.");
}

// ---- the whole loop on a model ----

const answersStep = 1e-3; // a smaller difference of mean ROUGE-L is none
const errorAsked = 0.1; // of predicted seconds, median

// The engine beside the fastest contender whose answers are as good.
function loopSayTimes(results, verdict) {
  const of = (name, key) => meanOf(results, name, key, "contender");
  const time = of(ours, "ttft_s_mean"), quality = of(ours, "rouge_l");
  if (!isNumber(time) || !isNumber(quality)) return;
  const names = unique(results.map((row) => textOf(row, "contender"))).filter((name) =>
    name !== ours && name !== "none" && of(name, "rouge_l") >= quality - answersStep);
  if (names.length === 0) {
    verdict.say("note", `No other contender answers as well as utility (ROUGE-L ` +
      `${fixed(quality, 4)}).`);
    return;
  }
  const other = names.reduce((a, b) => of(b, "ttft_s_mean") < of(a, "ttft_s_mean") ? b : a);
  const ratio = time / of(other, "ttft_s_mean");
  const state = stateOf(pairOf(results, other, "ttft_s_mean", "contender"), 0);
  verdict.say(state, `Mean time to first token: utility ${exactSeconds(time)}, ${other} ` +
    `${exactSeconds(of(other, "ttft_s_mean"))} (${fixed(ratio, 3)} times), with ROUGE-L ` +
    `${fixed(quality, 4)} and ${fixed(of(other, "rouge_l"), 4)}; of the contenders that answer ` +
    "as well, this is the fastest.");
}

function verdictLoop(document, verdict) {
  if (!Array.isArray(part(document, "results"))) return;
  const results = listOf(document, "results");
  const judged = results.flatMap((row) => listOf(row, "forms")).filter((form) =>
    typeof form.loss_within === "boolean");
  const within = judged.filter((form) => form.loss_within).length;
  const loads = results.filter((row) => isNumber(row.load_error_p50));
  const wrong = ["exact_wrong", "tokens_wrong", "positions_wrong"].reduce((sum, key) =>
    sum + sumOf(results, key), 0);
  sayOthers(document, verdict);
  loopSayTimes(results, verdict);
  if (judged.length > 0)
    verdict.say(within === judged.length ? "met" : "missed", "Predicted losses lie within the " +
      `measured intervals for ${within} of ${judged.length} variants.`);
  if (loads.length > 0) {
    const worst = loads.reduce((a, b) => b.load_error_p50 >= a.load_error_p50 ? b : a);
    verdict.say(worst.load_error_p50 <= errorAsked ? "met" : "missed", "Predicted seconds of " +
      `loads are off by at most ${fixed(100 * worst.load_error_p50, 1)} % in the median ` +
      `(${textOf(worst, "contender")}).`);
  }
  verdict.say(wrong > 0 ? "missed" : "met", `Every byte of ${whole(sumOf(results,
    "exact_checked"))} gets of exact variants was compared; ${whole(wrong)} differ.`);
  verdict.then("Run it with other seeds (--seeds 3) before a difference is believed.");
}

// ---- the grid, and the simulator beside the store ----

function verdictGrid(document, verdict) {
  const totals = part(document, "totals"), all = listOf(document, "cells");
  const cells = all.filter((cell) => isNumber(cell.ratio));
  const ahead = cells.filter((cell) => numberOf(cell, "ratio_high") < 1).length;
  const behind = cells.filter((cell) => numberOf(cell, "ratio_low") > 1).length;
  const lost = numberOf(totals, "intervals_above_1_02", 0);
  const room = numberOf(totals, "cells_with_room", 0);
  const middle = numberOf(totals, "geometric_mean_with_room");
  if (cells.length === 0) return;
  verdict.say(behind === 0 ? "ahead" : "note", "Mean time to first token, exact variants, beside " +
    `the best of all rivals in each cell: utility is ahead in ${ahead} of ${cells.length} cells, ` +
    `level in ${cells.length - ahead - behind} and behind in ${behind} (95 % intervals over ` +
    `${whole(numberOf(document, "repetitions", 0))} paired seeds).`);
  verdict.say(lost > 0 ? "missed" : "met", `In ${whole(lost)} of them the interval lies above ` +
    "1.02; none is asked.");
  if (room > 0)
    verdict.say(middle <= 0.95 ? "met" : "missed", `In the ${whole(room)} cells whose best rival ` +
      "lies more than 5 % above the bound, the geometric mean of the ratios is " +
      `${fixed(middle, 3)}; at most 0.95 is asked.`);
  verdict.say("note", `Best rivals: ${unique(cells.map((cell) => textOf(cell, "best_rival")))
    .join(", ")}. Medians and 99th percentiles are not part of the grid.`);
  for (const row of listOf(totals, "worst").slice(0, rowsNamed)) {
    const cell = all.find((one) => textOf(one, "cell") === textOf(row, "cell"));
    if (!(row.ratio > 1)) continue;
    verdict.say(numberOf(cell, "ratio_low") > 1 ? "behind" : "level", `${textOf(row, "cell")}: ` +
      `${fixed(row.ratio, 3)} ` +
      `${range(numberOf(cell, "ratio_low"), numberOf(cell, "ratio_high"))} of ` +
      `${textOf(row, "best_rival")}; ${textOf(row, "why")}.`);
  }
  if (part(document, "interrupted") === true)
    verdict.then("Run it again to its end: cells are missing.");
  if (part(document, "quick") === true)
    verdict.then("Run again without --quick: a quarter of the cells and 3 seeds say little.");
  verdict.then(behind > 0 ? "Explain the worst cell: lab/grid.py --cell NAME, then replay with " +
    "its settings." : "Replay a trace of your own: replay --trace FILE.");
}

function verdictBenchLive(document, verdict) {
  const totals = part(document, "totals"), total = (key) => numberOf(totals, key, 0);
  const short = total("within") < total("rows");
  const distance = (row) => Math.abs(Math.log(row.ratio));
  const rows = listOf(document, "rows").filter((row) => isNumber(row.ratio) && distance(row) > 0);
  if (total("rows") <= 0) return;
  verdict.say(short ? "missed" : "met", `In ${whole(total("within"))} of ${whole(total("rows"))}` +
    " runs the store's mean time to first token lies within " +
    `${whole(100 * numberOf(totals, "ratio_allowed"))} % of the simulator's; the ratios lie from ` +
    `${fixed(numberOf(totals, "ratio_min"), 3)} to ${fixed(numberOf(totals, "ratio_max"), 3)}.`);
  verdict.say(total("pairs_inverted") > 0 ? "missed" : "met", "Of " +
    `${whole(total("pairs_told_apart"))} pairs of policies that the simulator tells apart, ` +
    `${whole(total("pairs_inverted"))} rank the other way on the store.`);
  verdict.say(total("wrong_bytes") > 0 ? "missed" : "met", `${whole(total("wrong_bytes"))} gets ` +
    "gave back wrong bytes.");
  if (rows.length > 0) {
    const worst = rows.reduce((a, b) => distance(b) > distance(a) ? b : a);
    verdict.say("note", `Furthest apart: ${textOf(worst, "setting")} with ` +
      `${textOf(worst, "policy")}, ${fixed(worst.ratio, 3)}.`);
  }
  verdict.then(short ? "Repeat it on a quiet machine, and compare what differs twice: hits, puts " +
    "and rho of both." : "Trust the simulator's order for such devices.");
}

// ---- benches of parts ----

const stripeAsked = 0.9; // of the members' sum

function verdictBenchCodecs(document, verdict) {
  const checks = listOf(document, "checks"), losses = listOf(document, "losses");
  const missed = checks.filter((check) => check.ok === false);
  const sources = listOf(document, "sources"), source = textOf(sources.at(-1), "source");
  if (checks.length > 0)
    verdict.say(missed.length === 0 ? "met" : "missed", `${checks.length - missed.length} of the ` +
      `${checks.length} figures that are asked of the codecs are met.`);
  for (const check of missed.slice(0, rowsNamed))
    verdict.say("missed", `Of ${textOf(check, "source")}: ${textOf(check, "check")} ` +
      `(${textOf(check, "what")}) is ${fixed(check.value, 3)}, asked is ` +
      `${check.asked === "at_least" ? "at least" : "at most"} ${fixed(check.limit, 3)}.`);
  const rows = losses.filter((row) => textOf(row, "source") === source);
  const key = "attention_error";
  for (const bits of sources.length > 0 ? [6, 4.6, 3.2] : []) {
    const some = rows.filter((row) => isNumber(row[key]) && row.bits_per_element <= bits);
    if (some.length === 0) continue;
    const best = some.reduce((a, b) => b[key] < a[key] ? b : a);
    verdict.say("note", `Of ${source}, at most ${fixed(bits, 1)} bits an element: ` +
      `${textOf(best, "variant")} changes least, with an attention error of ` +
      `${small(best[key])} at ${fixed(best.bits_per_element, 2)} bits.`);
  }
  verdict.then("Ask what variants cost in a model's answers, which generated KV does not say: " +
    "profile quality.");
  verdict.then("Calibrate a ladder for your model: profile calibrate.");
}

// The default layout is held against what is asked; the others stand beside it.
function sayStripes(rows, verdict, words) {
  for (const row of rows.filter((one) => isNumber(one.ratio))) {
    const judged = textOf(row, "layout") === "proportional";
    verdict.say(!judged ? "note" : row.ratio >= stripeAsked ? "met" : "missed", words(row) +
      ` in its slower direction${judged ? " (at least 0.9 is asked)" : ""}.`);
  }
}

function verdictBenchStripe(document, verdict) {
  sayStripes(listOf(document, "results"), verdict, (row) => `Layout ${textOf(row, "layout")}, ` +
    `objects of ${whole(numberOf(row, "object_bytes", 0) / 1048576)} MiB: ${fixed(row.ratio, 3)} ` +
    "of the drives' sum");
  if (numberOf(document, "repetitions", 0) < 3)
    verdict.then("Run again without --quick: one repetition has no spread.");
}

function verdictBenchPolicy(document, verdict) {
  const rows = listOf(document, "rows"), gaps = numbersOf(rows, "gap_solver");
  if (gaps.length > 0)
    verdict.say("note", `The solver is at most ${small(Math.max(...gaps))} of the stake away ` +
      "from its own bound (dual).");
  for (const row of rows.filter((one) => isNumber(one.decision_ns_p50)))
    verdict.say("note", `${whole(numberOf(row, "n", 0))} entries: a decision takes ` +
      `${whole(row.decision_ns_p50)} ns in the median and ${whole(row.decision_ns_p99)} ns in ` +
      `the 99th percentile, an entry ${whole(row.bytes_per_entry)} bytes.`);
}

// ---- profiles ----

const contextTokens = 131072;
const entriesAsked = 30; // fewer say little of a loss
const lossAsked = 0.01; // mean loss, upper end of its interval

// The fewest bits with a loss that is small with confidence.
function saySet(set, rows, name, verdict) {
  const where = `${textOf(set, "model")} on ${textOf(set, "class")}`;
  const sure = rows.filter((row) => isNumber(row.bits_per_element) &&
    numberOf(row, "loss_high", numberOf(row, "loss_mean")) <= lossAsked);
  if (numberOf(set, "entries", entriesAsked) < entriesAsked)
    verdict.then(`Measure quality again without --quick: ${whole(set.entries)} entries say ` +
      "little.");
  if (sure.length === 0) {
    verdict.say("missed", `${where}: no variant has a loss that is below 1 % with confidence.`);
    return;
  }
  const best = sure.reduce((a, b) => b.bits_per_element < a.bits_per_element ? b : a);
  verdict.say("note", `${where}: ${textOf(best, name)} has the fewest bits, ` +
    `${fixed(best.bits_per_element, 2)} an element, at a loss below 1 %: ` +
    `${fixed(best.loss_mean, 4)} [${fixed(best.loss_low, 4)}, ${fixed(best.loss_high, 4)}], from ` +
    `${whole(numberOf(best, "entries", 0))} entries.`);
}

function verdictProfile(document, verdict) {
  const devices = listOf(document, "devices"), sets = listOf(document, "quality_sets");
  const busy = devices.filter((device) => device.busy === true).length;
  const cases = listOf(part(document, "break_even"), "devices");
  const loads = cases.filter((row) => row.loading_wins === "always" ||
    (row.loading_wins === "from" && row.tokens <= contextTokens)).length;
  for (const device of devices) {
    const reads = numberOf(device.read, "bytes_per_s", 0);
    const writes = numberOf(device.write, "bytes_per_s", 0);
    if (reads > 0)
      verdict.say("note", `${textOf(device, "device")} (${textOf(device, "tier")}` +
        `${device.imported === true ? ", imported" : ""}) reads at ${format.rate(reads)} and ` +
        `writes at ${writes > 0 ? format.rate(writes) : "an unknown rate"}.`);
  }
  if (busy > 0) {
    verdict.say("warning", `The machine was busy while devices were measured (${busy}): ` +
      "their figures are too uncertain to decide by.");
    verdict.then("Measure the devices again when the machine is quiet: profile devices.");
  }
  if (cases.length > 0)
    verdict.say(loads === cases.length ? "met" : "note", "Loading beats recomputing in contexts " +
      `of at most ${contextTokens} tokens in ${loads} of ${cases.length} cases of device, ` +
      "prefill and variant.");
  for (const set of sets) saySet(set, listOf(set, "curves"), "name", verdict);
  if (devices.length === 0) {
    verdict.say("warning", "No device was measured yet.");
    verdict.then("Measure this machine: profile devices codecs --database FILE.");
  }
  if (sets.length === 0)
    verdict.then("Measure what variants cost in answers: profile quality.");
  verdict.then("Replay a workload on these measurements: replay --database FILE.");
}

function verdictQuality(document, verdict) {
  for (const set of listOf(document, "sets"))
    saySet(set, listOf(set, "variants"), "variant", verdict);
  verdict.then("Turn the measured losses into a ladder: profile calibrate.");
}

// ---- all ----

// The sentences that a command wrote into its document.
function saySentences(document, verdict) {
  const sentences = Array.isArray(document.verdict) ? document.verdict : [];
  for (const sentence of sentences)
    if (typeof sentence === "string") verdict.say("note", sentence);
}

// A document of a kind that has no words, or not the parts that they need.
function sayOther(kind, known, verdict) {
  if (known) {
    verdict.say("warning",
      "This document holds no finished run that a verdict could be computed from.");
  } else if (kind === "") {
    verdict.say("warning", "This document has no schema of kvterrace: its numbers are drawn as " +
      "they are, and nothing is concluded from them.");
    verdict.then("Make the document anew with a command's --json.");
  } else {
    verdict.say("note", `No verdict is computed for documents of the kind ${kind}: the tables ` +
      "below hold all that it says.");
    verdict.then("Read the first figure and the tables below it.");
  }
}

function verdictOf(document, kind, words) {
  const verdict = new Verdict();
  if (words) words(document, verdict);
  else saySentences(document, verdict);
  if (verdict.sentences.length === 0) sayOther(kind, Boolean(words), verdict);
  verdict.then("Run the command again with other settings, and put both documents into one page.");
  return verdict;
}

function drawVerdict(parent, title, name, index, verdict) {
  const list = html("ul", {}, ...verdict.sentences.map((sentence) =>
    html("li", {class: sentence.state}, sentence.text)));
  parent.append(html("section", {class: "verdict"},
    html("h2", {}, html("a", {href: `#document-${index}`}, title), " ", html("small", {}, name)),
    list, html("p", {class: "next"}, html("b", {}, "Next step:"), ` ${verdict.next}`)));
}
