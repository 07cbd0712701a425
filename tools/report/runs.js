// SPDX-License-Identifier: Apache-2.0
// runs.js - what is drawn of runs of policies: replays, comparisons, the grid, and the simulator
// beside the store.
"use strict";

const tierNames = ["hbm", "dram", "ssd"];
const tierShade = {hbm: 1, dram: 0.65, ssd: 0.35};

// ---- replay ----

function policyGroups(results) {
  return unique(results.map((row) => String(row.policy))).map((policy) => {
    const runs = results.filter((row) => String(row.policy) === policy);
    return {policy, runs, colour: colourOf(policy),
      mean: (read) => mean(runs.map((run) => {
        const value = read(run);
        return isNumber(value) ? value : NaN;
      }))};
  });
}

function tierFacts(tiers) {
  return Object.entries(tiers || {}).map(([name, tier]) => [name, [
    format.bytes(tier.capacity_bytes),
    isNumber(tier.read_bytes_per_s) ? `reads at ${format.rate(tier.read_bytes_per_s)}` : "",
    isNumber(tier.write_bytes_per_s) ? `writes at ${format.rate(tier.write_bytes_per_s)}` : "",
    Array.isArray(tier.devices) ? tier.devices.map((one) => `${one.name} (${one.backend})`)
      .join(", ") : "",
  ].filter(Boolean).join(", ")]);
}

// How many hosts there are, and what they share; "" of one.
function hostsFact(set) {
  const remote = set.remote || {};
  if (!(set.hosts > 1)) return "";
  return `${set.hosts}, each with these servers and tiers, requests ${word(set.route)}` +
    (remote.capacity_bytes > 0 ? `; they share ${format.bytes(remote.capacity_bytes)} on ` +
      `${word(remote.nodes)} nodes` : "; they share nothing");
}

function replayFacts(parent, document) {
  const set = document.configuration || {}, load = document.workload || {};
  const first = rowsOf(document.results)[0] || {};
  headFacts(parent, document, [
    ["workload", `${word(load.name)}: ${format.whole(load.requests)} requests, ` +
      `${format.whole(load.input_tokens)} tokens in ${format.whole(load.distinct_blocks)} ` +
      `different blocks of ${word(load.block_tokens)} tokens`],
    ["the trace", load.note],
    ["footprint", `${format.bytes(first.footprint_bytes)}; an unlimited cache hits ` +
      `${format.share(first.ideal_block_ratio)} of the blocks`],
    ["servers", `${word(set.servers)}, prefill ${word(set.prefill)}, ${set.overlap ?
      "loads overlap the prefill layer by layer" : "loads precede the prefill"}${set.prefetch ?
      ", waiting requests prefetch" : ""}`],
    ...tierFacts(set.tiers),
    ["hosts", hostsFact(set)],
    ["policy", `alpha ${format.alpha(set)}, half-life ${format.seconds(
      set.half_life_s)}, holes ${word(set.holes)}`],
    ["profile", set.profile],
  ]);
}

function replayTimes(parent, document, groups) {
  const bound = groups.map((group) => group.mean((run) => run.bound_cost_s_per_request))
    .find(isNumber);
  const parts = [["computing", "compute_s_mean", 1], ["waiting for loads", "blocked_io_s_mean",
    0.6], ["waiting for a server", "wait_s_mean", 0.3]];
  bars(parent, {
    title: "Mean time to first token", xTitle: "seconds per request, mean over the seeds",
    write: format.seconds,
    legend: parts.map((part) => ({name: part[0], colour: "#6b7280", opacity: part[2]})),
    bound: isNumber(bound) ? {value: bound, name: `bound ${format.seconds(bound)}`} : null,
    caption: isNumber(bound) ? "The bound is on time and alpha times loss, without waiting for a " +
      "server: no policy that keeps an entry's variant between two uses is below it." : "",
    rows: groups.map((group) => ({name: group.policy, colour: group.colour,
      text: isNumber(group.mean((run) => run.ttft_s_mean)) ? undefined : "no mean: overloaded",
      parts: parts.map((part) => ({name: part[0], opacity: part[2],
        value: group.mean((run) => run[part[1]])}))})),
  });
}

const metricNames = {ttft_s_mean: "mean", ttft_s_p50: "median", ttft_s_p99: "99th percentile"};

function replayRatios(parent, ratios) {
  const policies = unique(ratios.map((row) => row.policy));
  dots(parent, {
    title: "utility beside each other policy, seed by seed",
    xTitle: "utility's time to first token over the other's: below 1 utility is faster",
    write: format.ratio, bound: {value: 1, name: "equal"}, least: 0.1,
    caption: ratios.some((row) => isNumber(row.low)) ?
      "Intervals of 95 % over the seeds that both ran." : "One seed: there are no intervals.",
    rows: policies.flatMap((policy) => ratios.filter((row) => row.policy === policy).map((row) => ({
      name: `${policy}, ${metricNames[row.metric] || row.metric}`, value: row.ratio, low: row.low,
      high: row.high, colour: colourOf(policy)}))),
  });
}

// Of each policy the share of the requests that were answered by a time, mean over its seeds.
function curvesOf(groups) {
  return groups.map((group) => {
    const curves = group.runs.map((run) => run.ttft_s_percentiles).filter(Array.isArray);
    const length = curves.length > 0 ? curves[0].length : 0;
    return {name: group.policy, colour: group.colour, dash: group.policy === "oracle",
      points: Array.from({length}, (_, i) => [mean(curves.map((curve) => curve[i])),
        i / (length - 1)])};
  });
}

function replayCurves(parent, groups) {
  lines(parent, {
    title: "Requests answered within a time", xTitle: "time to first token",
    yTitle: "share of the requests", xWrite: format.seconds, xLog: true,
    yWrite: (value) => Math.round(100 * value) + " %", yRange: [0, 1],
    series: curvesOf(groups),
  });
  lines(parent, {
    title: "The slowest requests", xTitle: "time to first token",
    yTitle: "share of the requests that take longer", xWrite: format.seconds, xLog: true,
    yLog: true, yWrite: (value) => format.plain(100 * value) + " %",
    series: curvesOf(groups).map((one) => Object.assign(one, {points: one.points.map(([x, y]) =>
      [x, 1 - y]).filter(([, y]) => y > 0.0005 && y <= 0.2)})),
  });
}

function replayHits(parent, document, groups) {
  const parts = tierNames.filter((tier) => groups.some((group) =>
    group.mean((run) => (run.hit_token_ratio || {})[tier]) > 0));
  bars(parent, {
    title: "Tokens found, by tier", xTitle: "share of the input tokens, leading runs alone",
    write: format.share,
    legend: parts.map((tier) => ({name: tier, colour: "#6b7280", opacity: tierShade[tier]})),
    rows: groups.map((group) => ({name: group.policy, colour: group.colour,
      text: format.share(group.mean((run) => (run.hit_token_ratio || {}).total)),
      parts: parts.map((tier) => ({name: tier, opacity: tierShade[tier],
        value: group.mean((run) => (run.hit_token_ratio || {})[tier])}))})),
  });
}

function sumTiers(bytes) {
  return tierNames.reduce((sum, tier) => sum + ((bytes || {})[tier] || 0), 0);
}

function replayTable(parent, results) {
  const heads = ["policy", "seed", "mean", "p50", "p90", "p99", "waiting", "blocked", "put", "rho",
    "peak rho", "quality", "block hits", "token hits", "loaded", "read", "written", "aborted",
    "decision p50"];
  table(parent, heads.map((name, i) => column(name, i === 0 ? "left" : undefined)),
    results.map((run) => [{text: run.policy, colour: colourOf(run.policy)}, run.seed,
      format.seconds(run.ttft_s_mean), format.seconds(run.ttft_s_p50),
      format.seconds(run.ttft_s_p90), format.seconds(run.ttft_s_p99),
      format.seconds(run.wait_s_mean), format.seconds(run.blocked_io_s_mean),
      format.seconds(run.put_s_mean), format.ratio(run.rho), format.ratio(run.rho_peak),
      isNumber(run.quality_mean) ? run.quality_mean.toFixed(4) : "-",
      format.share((run.hit_block_ratio || {}).total),
      format.share((run.hit_token_ratio || {}).total), format.share(run.used_token_ratio),
      format.bytes(sumTiers(run.bytes_read)), format.bytes(sumTiers(run.bytes_written)),
      run.moves_aborted, isNumber(run.decision_ns_p50) ?
        format.seconds(run.decision_ns_p50 * 1e-9) : "-"]));
}

function replayRegrets(parent, results) {
  const runs = results.filter((run) => isNumber(run.bound_saved_s_per_request));
  if (runs.length === 0) return;
  heading(parent, "Distance from the best");
  note(parent, "Seconds a request. Saved: prefill that was not computed, less loads, less alpha " +
    "times loss. Bound: no policy passes it; moved: not even one that improves variants ahead of " +
    "their use. Regrets by what they bound: solver, the dual against the best placement found; " +
    "counters, that dual against the engine's state; foresight, the placement against the best " +
    "for the uses that came; online, bound less saved.");
  const keys = [["saved", "achieved_saved_s_per_request"], ["bound", "bound_saved_s_per_request"],
    ["bound, moved", "bound_moving_saved_s_per_request"], ["solver", "regret_solver_s"],
    ["counters", "regret_counters_s"], ["foresight", "regret_foresight_s"],
    ["online", "regret_online_s"]];
  table(parent, [column("policy", "left"), column("seed"), ...keys.map((key) => column(key[0]))],
    runs.map((run) => [{text: run.policy, colour: colourOf(run.policy)}, run.seed,
      ...keys.map((key) => format.seconds(run[key[1]]))]));
}

// The rows of a list that each run has, with the run's policy and seed before them.
function runRows(results, key) {
  return results.flatMap((run) => rowsOf(run[key]).map((row) => ({policy: run.policy,
    seed: run.seed, ...row})));
}

function replayDetails(parent, document, results) {
  genericTable(parent, "Variants that gets were served in", runRows(results, "forms"));
  genericTable(parent, "Single blocks, and why they are where they are",
    runRows(results, "explained"));
  genericTable(parent, "Hints, by kind", results.flatMap((run) => Object.entries(run.hints || {})
    .map(([kind, counts]) => ({policy: run.policy, seed: run.seed, hints: kind, ...counts}))));
  genericTable(parent, "How soon blocks come back",
    rowsOf((document.workload || {}).reuse));
}

function replayNotes(parent, document, live) {
  heading(parent, "How to read this");
  note(parent, live ?
    "Live: a real store, real bytes on this machine's devices. Prefill is waited for, not " +
    "computed. Bytes, prefill and arrivals are scaled by one factor, and times are shown divided " +
    "by it, so that a millisecond that another process takes counts as many. Which tokens are " +
    "found the policy decides; times this machine decides too." :
    "Simulated in virtual time: no byte is moved. Servers, prefill and each tier's read and " +
    "write queue are models; a load takes seconds per request plus bytes over bandwidth.");
  note(parent, "Block hits count every resident block of a prefix, token hits its leading run " +
    "alone. Waiting is the queue before a server; blocked is load time that no computing hides. " +
    "rho is the load offered over the span, peak rho that of its busiest part; at 1 and above " +
    "the queue grows, and no mean exists.");
  if (document.note) note(parent, document.note);
}

function drawReplay(parent, document, verdict) {
  const results = rowsOf(document.results), groups = policyGroups(results);
  busyWarning(parent, document.profile_busy);
  replayFacts(parent, document);
  const grid = figures(parent);
  replayTimes(grid, document, groups);
  replayCurves(grid, groups);
  replayHits(grid, document, groups);
  if (rowsOf(verdict.ratios).length > 0) replayRatios(parent, verdict.ratios);
  drawHosts(parent, results);
  heading(parent, "All runs");
  replayTable(parent, results);
  replayRegrets(parent, results);
  replayDetails(parent, document, results);
  replayNotes(parent, document, results.some((run) => run.mode === "live"));
}

// ---- comparison ----

const compareTitles = {baselines: "Beside baselines", mixes: "Beside the best uniform mixes",
  footprint: "With an SSD as large as the footprint, exact variants"};

function compareName(row) {
  return isNumber(row.quality_level) ? `${row.against}, quality ${row.quality_level}` : row.against;
}

function drawCompare(parent, document) {
  const set = document.configuration || {};
  headFacts(parent, document, [["workload", `${word(document.workload)}: ` +
    `${format.whole(set.requests)} requests, ${word(set.seeds)} seeds, ` +
    `${word(set.tuning_seeds)} for tuning`], ["ladder", set.ladder],
  ["capacity", `${format.bytes(set.dram_bytes)} of DRAM, ${format.bytes(set.ssd_bytes)} of SSD, ` +
    `${format.ratio(set.capacity_over_footprint)} of the footprint`], ["note", document.note]]);
  for (const [key, title] of Object.entries(compareTitles)) {
    const rows = rowsOf(document[key]);
    if (rows.length === 0) continue;
    heading(parent, title);
    const caseOf = (row) => `SSD at ${format.rate(row.ssd_bytes_per_s)}, sigma ` +
      `${word(row.sigma)}, repeatability ${word(row.repeatability)}`;
    const cases = unique(rows.map(caseOf));
    for (const one of cases) {
      dots(parent, {title: one, write: format.ratio, bound: {value: 1, name: "equal"}, least: 0.1,
        xTitle:
          "the engine's mean time to first token over the rival's: below 1 the engine is faster",
        caption: "At equal or better quality, paired by seed; intervals of 95 %.",
        rows: rows.filter((row) => caseOf(row) === one).map((row) => ({
          name: compareName(row), value: row.ratio, low: (row.ratio_95 || [])[0],
          high: (row.ratio_95 || [])[1], colour: colourOf(row.against)}))});
    }
    table(parent, ["against", "ours", "SSD", "sigma", "its mean", "our mean", "its quality",
      "our quality", "ratio", "95 %", "fastest at quality", "verdict"].map((name, i) =>
      column(name, i < 2 ? "left" : undefined)), rows.map((row) => [
      {text: row.against, colour: colourOf(row.against)}, row.ours,
      format.rate(row.ssd_bytes_per_s), row.sigma, format.seconds(row.ttft_s_mean),
      format.seconds(row.our_ttft_s_mean), format.plain(row.quality_mean),
      format.plain(row.our_quality_mean), format.ratio(row.ratio),
      (row.ratio_95 || []).map(format.ratio).join(" to "),
      (row.fastest_at_quality || []).join(", "),
      {text: row.verdict, class: row.verdict === "win" ? "yes" : row.verdict === "lose" ? "no" :
        undefined}]), "All rows");
  }
}

// ---- grid and live ----

function policyLegend(policies) {
  return unique(policies).map((name) => ({name, colour: colourOf(name)}));
}

function gridRatios(parent, family, cells) {
  dots(parent, {title: `${family}: utility beside the best rival of each cell`, least: 0.1,
    xTitle: "utility's mean time to first token over the best rival's: below 1 utility is faster",
    write: format.ratio, bounds: [{value: 1, name: ""}, {value: 1.02, name: "asked: at most 1.02"}],
    legend: policyLegend(cells.map((cell) => cell.best_rival)),
    caption: "Coloured by the rival; intervals of 95 % over paired seeds; worst cell first.",
    rows: [...cells].sort((a, b) => b.ratio - a.ratio).map((cell) => ({
      name: `${cell.cell}, ${cell.best_rival}`, value: cell.ratio, low: cell.ratio_low,
      high: cell.ratio_high, colour: colourOf(cell.best_rival)}))});
}

function gridDistances(parent, family, cells, timeOf) {
  dots(parent, {title: `${family}: distance from the bound`, write: format.ratio,
    xTitle: "mean time to first token over the bound", bound: {value: 1, name: "bound"},
    legend: policyLegend(["utility", ...cells.map((cell) => cell.best_rival)]),
    caption: "Full: utility. Hollow: the best rival. No policy can be left of the bound.",
    rows: cells.filter((cell) => cell.bound > 0).map((cell) => ({name: cell.cell,
      value: timeOf(cell, "utility") / cell.bound, colour: colourOf("utility"),
      beside: timeOf(cell, cell.best_rival) / cell.bound,
      besideColour: colourOf(cell.best_rival)}))});
}

// Each policy's mean over the best rival's, cell by cell.
function gridMatrix(parent, cells, rows) {
  const policies = unique(rows.map((row) => row.policy));
  heading(parent, "Each policy over the best rival");
  table(parent, [column("cell", "left"), column("half", "left"), column("bound"),
    ...policies.map((name) => column(name))], cells.map((cell) => [cell.cell, cell.half,
    format.seconds(cell.bound), ...policies.map((policy) => {
      const some = rows.filter((row) => row.cell === cell.cell && row.policy === policy);
      const ratios = some.map((row) => row.ratio_to_best).filter(isNumber);
      return {text: ratios.length > 0 ? format.ratio(Math.min(...ratios)) : "-",
        class: policy === cell.best_rival ? "yes" : undefined};
    })]));
}

function drawGrid(parent, document) {
  const all = rowsOf(document.cells), rows = rowsOf(document.rows);
  const cells = all.filter((cell) => isNumber(cell.ratio));
  const timeOf = (cell, policy) => Math.min(...rows.filter((row) => row.cell === cell.cell &&
    row.policy === policy).map((row) => row.ttft_s_mean).filter(isNumber));
  headFacts(parent, document, [["cells", `${cells.length} of ${all.length}, ` +
    `${word(document.repetitions)} seeds${document.quick ? ", quick" : ""}`],
  ["half", document.half],
  ["took", format.seconds(document.seconds)]]);
  for (const family of unique(cells.map((cell) => cell.family))) {
    const some = cells.filter((cell) => cell.family === family);
    heading(parent, family);
    gridRatios(parent, family, some);
    gridDistances(parent, family, some, timeOf);
  }
  if (cells.length > 0) gridMatrix(parent, cells, rows);
  genericTable(parent, "Worst cells", rowsOf((document.totals || {}).worst));
  genericTable(parent, "All cells", all, true);
  genericTable(parent, "All runs", rows, true);
}

function drawLive(parent, document) {
  const rows = rowsOf(document.rows), totals = document.totals || {};
  headFacts(parent, document, [["took", format.seconds(totals.seconds)]]);
  for (const setting of unique(rows.map((row) => row.setting)))
    dots(parent, {title: `${word(setting)}: the store beside the simulator`, write: format.ratio,
      xTitle: "mean time to first token, live over simulated", least: 0.3,
      bounds: [{value: 1 - totals.ratio_allowed, name: ""}, {value: 1, name: ""},
        {value: 1 + totals.ratio_allowed, name: `asked: within ${format.share(
          totals.ratio_allowed)}`}].filter((bound) => isNumber(bound.value)),
      caption: "Behind each policy its rank, live and simulated.",
      rows: rows.filter((row) => row.setting === setting).map((row) => ({
        name: `${word(row.policy)} (${word(row.rank_live)}, ${word(row.rank_sim)})`,
        value: row.ratio,
        colour: colourOf(row.policy)}))});
  const flat = (row, one) => Object.fromEntries(Object.entries(row[one] || {}).map(
    ([key, value]) => [`${one}_${key}`, value]));
  genericTable(parent, "Runs", rows.map((row) => {
    const {live, sim, ...rest} = row;
    return Object.assign(rest, flat({live}, "live"), flat({sim}, "sim"));
  }));
  genericTable(parent, "Settings", rowsOf(document.settings), true);
}
