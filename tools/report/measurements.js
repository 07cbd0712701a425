// SPDX-License-Identifier: Apache-2.0
// measurements.js - what is drawn of measurements: codecs, drives, a profile, quality.
"use strict";

// ---- codecs ----

function bitsFigure(parent, title, rows, key, yTitle, nameOf) {
  const positive = rows.map((row) => row[key]).filter((value) => value > 0);
  const least = positive.length > 0 ? Math.min(...positive) : 1e-3;
  points(parent, {title, xTitle: "stored bits per element", yTitle, xWrite: format.plain,
    yWrite: (value) => value.toExponential(0).replace("e+", "e"), yLog: true, xZero: true,
    legend: unique(rows.filter((row) => row[key] >= 0).map((row) => familyOf(nameOf(row))))
      .map((name) => ({name, colour: colourOf(name)})),
    caption: "One mark per variant, lower left is better. A measured 0 has no place on a " +
      "logarithmic scale: it lies at the lower edge, at half of the least of the others.",
    points: rows.map((row) => ({name: nameOf(row), x: row.bits_per_element,
      y: row[key] === 0 ? least / 2 : row[key], low: row[key + "_low"], high: row[key + "_high"],
      colour: colourOf(familyOf(nameOf(row)))}))});
}

function familyOf(variant) {
  return String(variant).split(":")[0];
}

function drawCodecs(parent, document) {
  const losses = rowsOf(document.losses), speeds = rowsOf(document.results);
  headFacts(parent, document, [["memcpy", `${format.rate(document.memcpy_bytes_per_s)}, one ` +
    "thread"]]);
  bitsFigure(parent, "Attention over generated KV", losses, "attention_error",
    "attention error, share of the norm", (row) => row.variant);
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
  if (rowsOf(document.checks).length > 0) heading(parent, "What is asked");
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
      xTitle: "tokens of the context", yTitle: "time of a load or a prefill",
      xLog: true, yLog: true,
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
  const title = `${word(set.model)} on ${word(set.class)}`;
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
    note(parent, `${word(set.model)} on ${word(set.class)}, best variant first; one that is ` +
      "worse than a cheaper one is refused.");
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
      ...rowsOf(device.mixed), ...rowsOf(device.starts)], true);
}

function drawQuality(parent, document) {
  headFacts(parent, document, [["model", document.model], ["metric", document.metric],
    ["entries", document.entries]]);
  for (const set of rowsOf(document.sets)) qualitySet(parent, set, rowsOf(set.variants),
    (row) => row.variant);
}
