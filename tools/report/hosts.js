// SPDX-License-Identifier: Apache-2.0
// hosts.js - what is drawn of several hosts and the tier that they share.
"use strict";

const hostPlaces = [["here", "local_block_ratio", "local_blocks", 0.85],
  ["on another host", "remote_block_ratio", "remote_blocks", 0.4]];

const hostLegend = hostPlaces.map((place) => ({name: place[0], colour: "#6b7280",
  opacity: place[3]}));

function hostFound(parent, groups) {
  bars(parent, {
    title: "Blocks found, here and on other hosts", write: format.share, legend: hostLegend,
    xTitle: "share of all block uses in the prefix that was found, mean over the seeds",
    rows: groups.map((group) => ({name: group.policy, colour: group.colour,
      text: format.share(group.mean((run) => run.hosts.found_block_ratio)),
      parts: hostPlaces.map((place) => ({name: place[0], opacity: place[3],
        value: group.mean((run) => run.hosts[place[1]])}))})),
  });
}

// One run, host by host: a balancer's luck shows as unequal rows.
function hostRows(parent, run) {
  const rows = rowsOf(run.hosts.rows);
  bars(parent, {
    title: `Host by host: ${word(run.policy)}, seed ${word(run.seed)}`, write: format.share,
    xTitle: "share of the host's own block uses", legend: hostLegend,
    caption: "Behind each host its mean time to first token.",
    rows: rows.map((row, i) => ({name: `host ${i + 1}`, colour: colourOf(run.policy),
      text: format.seconds(row.ttft_s_mean),
      parts: hostPlaces.map((place) => ({name: place[0], opacity: place[3],
        value: row.block_refs > 0 ? row[place[2]] / row.block_refs : 0}))})),
  });
}

function hostTable(parent, runs) {
  const heads = ["policy", "seed", "found", "here", "elsewhere", "written per use", "published",
    "fetched", "offered", "other had it", "declined", "dropped", "written twice", "evicted",
    "peak bytes", "load error p50"];
  const rows = runs.map((run) => {
    const shared = run.hosts, all = shared.all || {};
    return [{text: run.policy, colour: colourOf(run.policy)}, run.seed,
      format.share(shared.found_block_ratio), format.share(shared.local_block_ratio),
      format.share(shared.remote_block_ratio), format.ratio(shared.written_blocks_per_use),
      format.bytes(all.published_bytes), format.bytes(all.fetched_bytes), shared.offered,
      shared.deduplicated, shared.declined, shared.dropped, shared.written_twice,
      shared.evicted, format.bytes(shared.peak_bytes),
      isNumber(shared.load_error_p50) ? format.share(shared.load_error_p50) : "-"];
  });
  // What never happened needs no column.
  const told = heads.map((_, i) => i < 2 || rows.some((row) => row[i] !== 0));
  table(parent, heads.map((name, i) => column(name, i === 0 ? "left" : undefined))
    .filter((_, i) => told[i]), rows.map((row) => row.filter((_, i) => told[i])));
}

function drawHosts(parent, results) {
  const runs = results.filter((run) => run.hosts && rowsOf(run.hosts.rows).length > 1);
  if (runs.length === 0) return;
  heading(parent, `${rowsOf(runs[0].hosts.rows).length} hosts and the tier that they share`);
  const grid = figures(parent), groups = policyGroups(runs);
  hostFound(grid, groups);
  for (const group of groups) hostRows(grid, group.runs[0]);
  hostTable(parent, runs);
  note(parent, "Found counts the blocks of each request's prefix that need not be computed, on " +
    "the request's own host or in the shared tier. Published bytes were written there, fetched " +
    "ones read from there; a block that another host had written is not written again.");
}
