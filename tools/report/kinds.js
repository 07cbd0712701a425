// SPDX-License-Identifier: Apache-2.0
// kinds.js - what is drawn of each kind of document, and of documents of other kinds: any list of
// rows becomes a table, and its most telling column a figure.
"use strict";

const tierNames = ["hbm", "dram", "ssd"];
const tierShade = {hbm: 1, dram: 0.65, ssd: 0.35};
const left = {class: "left"};

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

function replayFacts(parent, document) {
  const set = document.configuration || {}, load = document.workload || {};
  const first = rowsOf(document.results)[0] || {};
  headFacts(parent, document, [
    ["workload", `${load.name}: ${format.whole(load.requests)} requests, ` +
      `${format.whole(load.input_tokens)} tokens in ${format.whole(load.distinct_blocks)} ` +
      `different blocks of ${load.block_tokens} tokens`],
    ["footprint", `${format.bytes(first.footprint_bytes)}; an unlimited cache hits ` +
      `${format.share(first.ideal_block_ratio)} of the blocks`],
    ["servers", `${set.servers}, prefill ${set.prefill}, ${set.overlap ?
      "loads overlap the prefill layer by layer" : "loads precede the prefill"}`],
    ...tierFacts(set.tiers),
    ["policy", `alpha ${format.seconds(set.alpha_s)}, half-life ${format.seconds(
      set.half_life_s)}, holes ${set.holes}`],
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
      "server: no policy that keeps an entry's form between two uses is below it." : "",
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
    caption: "Intervals of 95 % over the seeds that both ran.",
    rows: policies.flatMap((policy) => ratios.filter((row) => row.policy === policy).map((row) => ({
      name: `${policy}, ${metricNames[row.metric] || row.metric}`, value: row.ratio, low: row.low,
      high: row.high, colour: colourOf(policy)}))),
  });
}

function replayCurves(parent, groups) {
  lines(parent, {
    title: "Requests answered within a time", xTitle: "time to first token, seconds",
    yTitle: "share of the requests", xWrite: format.seconds, xLog: true,
    yWrite: (value) => Math.round(100 * value) + " %", yRange: [0, 1],
    series: groups.map((group) => {
      const curves = group.runs.map((run) => run.ttft_s_percentiles).filter(Array.isArray);
      const length = curves.length > 0 ? curves[0].length : 0;
      return {name: group.policy, colour: group.colour, dash: group.policy === "oracle",
        points: Array.from({length}, (_, i) => [mean(curves.map((curve) => curve[i])),
          i / (length - 1)])};
    }),
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
    "times loss. Bound: no policy passes it; moved: not even one that improves forms ahead of " +
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
  heading(parent, "All runs");
  replayTable(parent, results);
  replayRegrets(parent, results);
  replayNotes(parent, document, results.some((run) => run.mode === "live"));
}

// ---- comparison ----

const compareTitles = {baselines: "Beside baselines", mixes: "Beside the best uniform mixes",
  footprint: "With an SSD as large as the footprint, exact forms",
  ablations: "Ablation: the engine without and with"};

function compareName(kind, row) {
  if (kind === "ablations") return `${row.ours}, against ${row.against}`;
  return isNumber(row.quality_level) ? `${row.against}, quality ${row.quality_level}` : row.against;
}

function drawCompare(parent, document) {
  const set = document.configuration || {};
  headFacts(parent, document, [["workload", `${document.workload}: ${format.whole(set.requests)} ` +
    `requests, ${set.seeds} seeds, ${set.tuning_seeds} for tuning`], ["ladder", set.ladder],
  ["capacity", `${format.bytes(set.dram_bytes)} of DRAM, ${format.bytes(set.ssd_bytes)} of SSD, ` +
    `${format.ratio(set.capacity_over_footprint)} of the footprint`], ["note", document.note]]);
  for (const [key, title] of Object.entries(compareTitles)) {
    const rows = rowsOf(document[key]);
    if (rows.length === 0) continue;
    heading(parent, title);
    const cases = unique(rows.map((row) => `SSD at ${format.rate(row.ssd_bytes_per_s)}, sigma ` +
      `${row.sigma}, repeatability ${row.repeatability}`));
    for (const one of cases) {
      dots(parent, {title: one, write: format.ratio, bound: {value: 1, name: "equal"}, least: 0.1,
        xTitle: key === "ablations" ? "mean time to first token with over without" :
          "the engine's mean time to first token over the rival's: below 1 the engine is faster",
        caption: "At equal or better quality, paired by seed; intervals of 95 %.",
        rows: rows.filter((row) => one === `SSD at ${format.rate(row.ssd_bytes_per_s)}, sigma ` +
          `${row.sigma}, repeatability ${row.repeatability}`).map((row) => ({
          name: compareName(key, row), value: row.ratio, low: (row.ratio_95 || [])[0],
          high: (row.ratio_95 || [])[1], colour: colourOf(key === "ablations" ? row.ours :
            row.against)}))});
    }
    table(parent, ["against", "ours", "SSD", "sigma", "its mean", "our mean", "its quality",
      "our quality", "ratio", "95 %", "verdict"].map((name, i) =>
      column(name, i < 2 ? "left" : undefined)), rows.map((row) => [
      {text: row.against, colour: colourOf(row.against)}, row.ours,
      format.rate(row.ssd_bytes_per_s), row.sigma, format.seconds(row.ttft_s_mean),
      format.seconds(row.our_ttft_s_mean), format.plain(row.quality_mean),
      format.plain(row.our_quality_mean), format.ratio(row.ratio),
      (row.ratio_95 || []).map(format.ratio).join(" to "),
      {text: row.verdict, class: row.verdict === "win" ? "yes" : row.verdict === "lose" ? "no" :
        undefined}]), "All rows");
  }
}

// ---- codecs ----

function bitsFigure(parent, title, rows, key, yTitle, nameOf) {
  points(parent, {title, xTitle: "stored bits per element", yTitle, xWrite: format.plain,
    yWrite: (value) => value.toExponential(0).replace("e+", "e"), yLog: true, xZero: true,
    legend: unique(rows.filter((row) => row[key] > 0).map((row) => familyOf(nameOf(row))))
      .map((name) => ({name, colour: colourOf(name)})),
    caption: "One mark per variant, lower left is better. Exact variants change nothing and have " +
      "no place on a logarithmic scale.",
    points: rows.map((row) => ({name: nameOf(row), x: row.bits_per_element, y: row[key],
      low: row[key + "_low"], high: row[key + "_high"],
      colour: colourOf(familyOf(nameOf(row)))}))});
}

function familyOf(variant) {
  return String(variant).split(":")[0];
}

function drawCodecs(parent, document) {
  const losses = rowsOf(document.losses), speeds = rowsOf(document.results);
  headFacts(parent, document, [["memcpy", `${format.rate(document.memcpy_bytes_per_s)}, one ` +
    "thread"]]);
  for (const source of unique(losses.map((row) => row.source))) {
    const rows = losses.filter((row) => row.source === source);
    const evaluated = rows.some((row) => isNumber(row.kl));
    bitsFigure(parent, `${source}: ${evaluated ? "what is predicted on top of it" :
      "attention over it"}`, rows, evaluated ? "kl" : "attention_error",
    evaluated ? "mean KL, nats per token" : "attention error, share of the norm",
    (row) => row.variant);
  }
  const best = (document.machine || {}).isa;
  const records = speeds.filter((row) => row.scope === "record" && row.threads === 1 &&
    row.isa === (speeds.some((one) => one.isa === best) ? best : speeds[0].isa));
  const grid = figures(parent);
  for (const direction of ["decode", "encode"])
    bars(grid, {title: `Whole records: ${direction}, one thread`, write: format.rate,
      xTitle: "decoded bytes per second", bound: {value: document.memcpy_bytes_per_s,
        name: "memcpy"},
      rows: records.filter((row) => row.direction === direction).map((row) => ({
        name: row.variant, colour: colourOf(familyOf(row.variant)),
        parts: [{name: direction, value: row.bytes_per_s}]}))});
  heading(parent, "What is asked");
  table(parent, [column("check", "left"), column("source", "left"), column("of", "left"),
    column("value"), column("asked"), column("")], rowsOf(document.checks).map((row) => [row.check,
    row.source, row.what, format.ratio(row.value), `${row.asked === "at_least" ? "at least" :
      "at most"} ${format.ratio(row.limit)}`, {text: row.ok ? "met" : "missed",
      class: row.ok ? "yes" : "no"}]));
  genericTable(parent, "Losses", losses, true);
  genericTable(parent, "Speeds", speeds, true);
  genericTable(parent, "Sources", rowsOf(document.sources), true);
}

// ---- drives ----

function rateBars(parent, title, rows, nameOf, bound) {
  bars(parent, {title, xTitle: "bytes per second, median", write: format.rate, bound,
    rows: rows.flatMap((row) => [["read", 1], ["write", 0.5]].map(([way, opacity]) => ({
      name: `${nameOf(row)}, ${way}`, colour: colourOf(nameOf(row)),
      parts: [{name: way, value: row[`${way}_bytes_per_s`], opacity}]})))});
}

function shareBars(parent, title, rows, nameOf) {
  bars(parent, {title, xTitle: "share of the members' sum", write: format.ratio,
    bound: {value: 1, name: "sum of the drives alone"},
    rows: rows.flatMap((row) => [["read", 1], ["write", 0.5]].map(([way, opacity]) => ({
      name: `${nameOf(row)}, ${way}`, colour: colourOf(nameOf(row)),
      parts: [{name: way, value: row[`${way}_ratio`], opacity}]})))});
}

function drawDevices(parent, document) {
  const rows = rowsOf(document.results), fast = rowsOf(document.fast_path);
  const nameOf = (row) => [row.device, row.layout].filter(Boolean).join(" ");
  headFacts(parent, document, [["memcpy", format.rate(document.memcpy_bytes_per_s)],
    ["repetitions", document.repetitions]]);
  const grid = figures(parent);
  rateBars(grid, "Bandwidth", rows, nameOf);
  shareBars(grid, "Striping", rows.filter((row) => isNumber(row.ratio)), nameOf);
  dots(grid, {title: "Beside fio on the same device", xTitle: "our best bandwidth over fio's best",
    write: format.ratio, bound: {value: 1, name: "fio"}, rows: fast.map((row) => ({
      name: `${row.device}, ${row.direction}, ${format.bytes(row.request_bytes)}`,
      value: row.ratio, colour: colourOf(row.device)}))});
  genericTable(parent, "Devices", rows);
  genericTable(parent, "Fast path", fast);
}

function drawStripe(parent, document) {
  const rows = rowsOf(document.results), drives = rowsOf(document.drives);
  const nameOf = (row) => `${row.layout}, ${format.bytes(row.object_bytes)}`;
  headFacts(parent, document, [["repetitions", document.repetitions]]);
  const grid = figures(parent);
  shareBars(grid, "Layouts", rows, nameOf);
  rateBars(grid, "Drives alone", drives, (row) => row.device);
  genericTable(parent, "Layouts", rows);
  genericTable(parent, "Drives", drives);
}

function drawAblation(parent, document) {
  const rows = rowsOf(document.results);
  headFacts(parent, document, [["devices together", format.rate(document.device_sum_bytes_per_s)],
    ["memory", format.rate(document.memory_bytes_per_s)], ["repetitions", document.repetitions]]);
  const grid = figures(parent);
  for (const tokens of unique(rows.map((row) => row.tokens))) {
    const some = rows.filter((row) => row.tokens === tokens);
    bars(grid, {title: `${format.whole(tokens)} tokens: computing is blocked`,
      xTitle: "seconds, median", write: format.seconds,
      bound: {value: some[0].ideal_blocked_seconds, name: "ideal"},
      rows: some.map((row) => ({name: row.row, colour: row.row === "full" ? policyColours.utility :
        policyColours.none, parts: [{name: "blocked", value: row.blocked_seconds}]}))});
  }
  genericTable(parent, "Rows", rows);
}

// ---- profile ----

function profileDevices(parent, document) {
  const devices = rowsOf(document.devices);
  heading(parent, "Devices");
  note(parent, "A load takes the seconds of a request plus bytes over bandwidth; off by is the " +
    "model's largest error at one request at a time.");
  const way = (one) => one ? [format.rate(one.bytes_per_s), format.seconds(one.request_seconds),
    format.share(one.residual)] : ["-", "-", "-"];
  table(parent, ["device", "tier", "engine", "capacity", "read", "a request", "off by", "write",
    "a request", "off by", "notes"].map((name, i) => column(name, i < 3 || i === 10 ? "left" :
    undefined)), devices.map((row) => [{text: row.device, colour: colourOf(row.device)}, row.tier,
    row.engine, row.capacity_bytes > 0 ? format.bytes(row.capacity_bytes) : "-", ...way(row.read),
    ...way(row.write), ["direct", "emulated", "imported", "busy"].filter((key) => row[key])
      .join(", ")]));
  const grid = figures(parent);
  for (const kind of ["read", "write"])
    lines(grid, {title: `Bandwidth of ${kind}s`, xTitle: "bytes of a request",
      yTitle: "bytes per second, most requests in flight", xLog: true, yLog: true,
      xWrite: format.bytes, yWrite: format.rate, series: devices.map((row) => ({name: row.device,
        colour: colourOf(row.device), points: deepest(rowsOf(row.points).filter((point) =>
          point.kind === kind))}))});
}

// Of each request size the point with the most requests in flight.
function deepest(rows) {
  return unique(rows.map((row) => row.request_bytes)).sort((a, b) => a - b).map((bytes) => {
    const most = rows.filter((row) => row.request_bytes === bytes)
      .reduce((best, row) => row.depth > best.depth ? row : best);
    return [bytes, most.bytes_per_s];
  });
}

function profileLoads(parent, document) {
  const even = rowsOf((document.break_even || {}).devices);
  if (rowsOf(document.load).length + even.length === 0) return;
  heading(parent, "Loading against recomputing");
  for (const one of rowsOf(document.load)) {
    const line = (row, name, dash) => ({name, dash, colour: colourOf(name),
      points: one.tokens.map((tokens, i) => [tokens, row.seconds[i]])});
    lines(parent, {title: `Seconds of a context, ${format.bytes(one.token_bytes)} of KV a token`,
      xTitle: "tokens of the context", yTitle: "seconds", xLog: true, yLog: true,
      xWrite: format.whole, yWrite: format.seconds, caption: "Dashed: computing. Where a " +
        "device's line is below it, loading raw KV is faster.",
      series: [...rowsOf(one.loads).map((row) => line(row, row.device)),
        ...rowsOf(one.prefills).map((row) => line(row, `compute ${row.prefill}`, true))]});
  }
  const codecs = unique(even.map((row) => row.codec));
  const keys = unique(even.map((row) => JSON.stringify([row.device, row.prefill])));
  note(parent, "Tokens from which loading beats recomputing, by the variant that is stored:");
  table(parent, [column("device", "left"), column("prefill", "left"), ...codecs.map((name) =>
    column(name))], keys.map((key) => {
    const [device, prefill] = JSON.parse(key);
    return [{text: device, colour: colourOf(device)}, prefill, ...codecs.map((codec) => {
      const row = even.find((one) => one.device === device && one.prefill === prefill &&
        one.codec === codec);
      if (!row) return "-";
      if (row.loading_wins === "from") return format.whole(Math.ceil(row.tokens));
      return {text: row.loading_wins, class: row.loading_wins === "never" ? "no" : "yes"};
    })];
  }));
}

function profileCodecs(parent, document) {
  const rows = rowsOf(document.codecs), best = rows.filter((row) => row.best);
  if (rows.length === 0) return;
  heading(parent, "Codecs");
  for (const key of unique(best.map((row) => JSON.stringify([row.source, row.threads])))) {
    const [source, threads] = JSON.parse(key);
    points(parent, {title: `Decoding ${source === "sample" ? "generated KV" : source} with ` +
      `${threads} thread${threads > 1 ? "s" : ""}`, xTitle: "stored bytes, share of raw",
    yTitle: "decoded bytes per second", xWrite: format.share, yWrite: format.rate, xZero: true,
    yZero: true, points: best.filter((row) => row.source === source && row.threads === threads)
      .map((row) => ({name: row.name, x: row.stored_share, y: row.decode_bytes_per_s,
        colour: colourOf(familyOf(row.name))}))});
  }
  table(parent, ["variant", "source", "instructions", "threads", "stored", "encode", "decode"].map(
    (name, i) => column(name, i < 3 ? "left" : undefined)), rows.map((row) => [row.name,
    row.imported ? row.import_source : row.source, row.isa, row.threads,
    format.share(row.stored_share), format.rate(row.encode_bytes_per_s),
    format.rate(row.decode_bytes_per_s)]), "All measurements of codecs");
}

function qualitySet(parent, set, rows, nameOf) {
  const title = `${set.model} on ${set.class}`;
  bitsFigure(parent, title, rows.map((row) => Object.assign({}, row, {
    loss: row.loss_mean, loss_low: row.loss_low, loss_high: row.loss_high})), "loss",
  "loss: one minus the similarity to exact KV's answer", nameOf);
  const keys = [["bits", "bits_per_element", format.bits], ["loss", "loss_mean", format.plain],
    ["low", "loss_low", format.plain], ["high", "loss_high", format.plain],
    ["p90", "loss_p90", format.plain], ["KL, nats", "kl", format.plain],
    ["top-1", "top1", format.ratio], ["ROUGE-L", "rouge_l", format.ratio], ["F1", "f1",
      format.ratio], ["answers", "answers", format.ratio], ["attention error", "attention_error",
      format.plain]].filter((key) => rows.some((row) => isNumber(row[key[1]])));
  table(parent, [column("variant", "left"), ...keys.map((key) => column(key[0])),
    column("source", "long")], rows.map((row) => [nameOf(row), ...keys.map((key) =>
    key[2](row[key[1]])), row.source || set.method || ""]));
}

function profileLadders(parent, document) {
  const sets = rowsOf(document.calibrations);
  if (sets.length > 0) heading(parent, "Ladders");
  for (const set of sets) {
    note(parent, `${set.model} on ${set.class}, best variant first; one that is worse than a ` +
      "cheaper one is refused.");
    table(parent, [column("variant", "left"), column("bits"), column("loss"), column("at most"),
      column(""), column("evidence", "long")], rowsOf(set.rungs).map((row) => [row.name,
      format.bits(row.bits_per_element), format.plain(row.loss), format.plain(row.loss_upper),
      {text: row.accepted ? "accepted" : "refused", class: row.accepted ? "yes" : "no"},
      row.evidence]));
    table(parent, [column("question", "left"), column("chosen", "left"), column("evidence",
      "long")], rowsOf(set.choices).map((row) => [row.question, row.chosen, row.evidence]));
  }
}

function drawProfile(parent, document) {
  const runs = rowsOf(document.runs), last = runs[runs.length - 1] || {};
  busyWarning(parent, rowsOf(document.devices).some((row) => row.busy));
  facts(parent, [["database", document.database], ["machine", [last.host_name, last.cpu_model,
    last.cpu_count ? `${last.cpu_count} CPUs` : "", last.memory_bytes ?
      format.bytes(last.memory_bytes) + " of memory" : "", last.kernel].filter(Boolean).join(", ")],
  ["runs", runs.length > 0 ? `${runs.length}, from ${runs[0].started_utc} to ` +
    `${last.started_utc}` : "none"], ["version", last.library_version],
  ["last command", last.command_line]]);
  if (rowsOf(document.devices).length > 0) profileDevices(parent, document);
  profileLoads(parent, document);
  profileCodecs(parent, document);
  const sets = rowsOf(document.quality_sets);
  if (sets.length > 0) heading(parent, "Quality");
  for (const set of sets) qualitySet(parent, set, rowsOf(set.curves), (row) => row.name);
  profileLadders(parent, document);
  genericTable(parent, "Learned while running", rowsOf(document.learned));
  genericTable(parent, "Prefill", rowsOf(document.prefill));
  genericTable(parent, "Runs", runs, true);
  for (const device of rowsOf(document.devices))
    genericTable(parent, `All points of ${device.device}`, [...rowsOf(device.points),
      ...rowsOf(device.mixed)], true);
}

function drawQuality(parent, document) {
  headFacts(parent, document, [["model", document.model], ["metric", document.metric],
    ["entries", document.entries]]);
  for (const set of rowsOf(document.sets)) qualitySet(parent, set, rowsOf(set.variants),
    (row) => row.variant);
}

// ---- documents of any other kind ----

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

const kinds = {
  "replay": drawReplay, "compare": drawCompare, "bench-codecs": drawCodecs,
  "bench-devices": drawDevices, "bench-stripe": drawStripe, "bench-ablation": drawAblation,
  "profile": drawProfile, "profile-quality": drawQuality,
};

// A document that is not what its kind says is drawn as one of no kind.
function drawDocument(section, entry) {
  const title = html("h2", {}, `${entry.verdict.title} `, html("small", {}, entry.name));
  const draw = Object.hasOwn(kinds, entry.verdict.kind) ? kinds[entry.verdict.kind] : drawGeneric;
  const count = redraws.length;
  section.append(title);
  try {
    draw(section, entry.document, entry.verdict);
  } catch (error) {
    redraws.length = count;
    section.replaceChildren(title);
    note(section, "This document lacks parts that its kind has; it is drawn as it is.");
    drawGeneric(section, entry.document, entry.verdict);
  }
}

document.querySelectorAll("script.data").forEach((data, index) => {
  drawDocument(document.getElementById(`document-${index}`), JSON.parse(data.textContent));
});

function redraw() {
  for (const one of redraws) one();
}

redraw();
window.addEventListener("resize", redraw);
document.addEventListener("toggle", redraw, true);
