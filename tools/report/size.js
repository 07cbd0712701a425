// SPDX-License-Identifier: Apache-2.0
// size.js - what is said and drawn of a grid of DRAM and SSD: the command's own sentences, the
// times over the size of the SSD, and every cell.
"use strict";

function sizeText(bytes) {
  if (!isNumber(bytes)) return "-";
  const gib = 2 ** 30;
  return bytes === 0 ? "none" : bytes % gib === 0 ? `${bytes / gib} GiB` : format.bytes(bytes);
}

const money = (value) => isNumber(value) ? `$${Math.round(value).toLocaleString("en")}` : "-";

// An interval that holds 0 is no gain, and no colour says so.
function verdictSize(document, verdict) {
  const pays = part(document, "pays") === true;
  const low = numberOf(part(part(part(document, "saved_over"), "none"), "gpu_hours_per_day"),
    "low");
  const texts = part(document, "verdict");
  const sentences = Array.isArray(texts) ? texts.filter((text) => typeof text === "string") : [];
  sentences.forEach((text, i) => verdict.say(i > 0 ? "note" : !pays ? "behind" :
    low > 0 ? "ahead" : "note", text));
  if (sentences.length > 0 && part(document, "interrupted") === true) {
    verdict.say("warning", "It was interrupted: cells are missing.");
    verdict.then("Run it again to its end.");
  }
  verdict.then(pays ? "Change an assumption that is not yours, and see whether the advice stays." :
    "Try prices of your own (--price), a faster drive (--machine) or more traffic.");
}

function sizeLines(parent, document) {
  const all = listOf(document, "cells"), cells = all.filter((cell) => cell.policy === ours);
  const none = all.find((cell) => cell.policy === "none");
  const drams = unique(cells.map((cell) => cell.dram_bytes)).sort((a, b) => a - b);
  for (const [name, key] of [["Mean", "ttft_s_mean"], ["99th percentile", "ttft_s_p99"]]) {
    const without = numberOf(none, key);
    lines(parent, {
      title: `${name} of the time to first token, over the size of the SSD`,
      xTitle: "SSD; a line for each size of DRAM", xWrite: format.bytes, xZero: true,
      yWrite: format.seconds,
      bound: isNumber(without) ? {value: without,
        name: `without a cache ${format.seconds(without)}`} : null,
      series: drams.map((dram) => ({
        name: `${sizeText(dram)} of DRAM`, colour: colourOf(`dram ${dram}`),
        points: cells.filter((cell) => cell.dram_bytes === dram).sort((a, b) =>
          a.ssd_bytes - b.ssd_bytes).map((cell) => [cell.ssd_bytes, cell[key]])})),
    });
  }
}

function sizeTable(parent, document) {
  const cells = listOf(document, "cells");
  const heads = ["mean", "p99", "token hits", "GPU hours a day", "DRAM", "SSD", "GPU", "a month",
    ""];
  table(parent, [column("DRAM + SSD", "left"), column("policy", "left"),
    ...heads.map((name) => column(name))],
  cells.map((cell) => {
    const cost = part(cell, "cost_per_month");
    return [word(cell.cell), {text: word(cell.policy), colour: colourOf(cell.policy)},
      format.seconds(cell.ttft_s_mean) + (cell.steady === false ? " *" : ""),
      format.seconds(cell.ttft_s_p99), format.share(cell.hit_token_ratio),
      format.plain(cell.gpu_hours_per_day),
      ...["dram", "ssd", "gpu", "total"].map((key) => money(numberOf(cost, key))),
      cell.advised === true ? "advised" : ""];
  }));
  if (cells.some((cell) => cell.steady === false))
    note(parent, "*: at times more work comes than the servers do; the mean is of this stretch " +
      "alone.");
}

function drawSize(parent, document) {
  const load = part(document, "workload");
  headFacts(parent, document, [
    ["workload", `${word(textOf(load, "name"))}: ${format.whole(numberOf(load, "requests"))} ` +
      `requests, ${format.bytes(numberOf(load, "footprint_bytes"))} of KV in all`]]);
  sizeLines(figures(parent), document);
  heading(parent, "All cells");
  sizeTable(parent, document);
  heading(parent, "What was assumed");
  table(parent, [column("assumed", "long"), column("option", "left")],
    listOf(document, "assumptions").map((row) => [word(row.assumed), word(row.option)]));
}
