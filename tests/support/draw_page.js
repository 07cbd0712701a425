// SPDX-License-Identifier: Apache-2.0
// draw_page.js PAGE WIDTH: runs a report page's script on a document model of its own, as wide as
// asked, and prints what it drew as JSON: {"title", "verdicts": [{"title", "name", "sentences",
// "next"}], "notes", "tables", "figures": [{"title", "axes", "outside", "text"}]}. "outside" names
// what lies beyond the picture. For tests; a glyph counts as 6.5 wide.
"use strict";

const fs = require("fs");

const page = fs.readFileSync(process.argv[2], "utf8");
const pageWidth = Number(process.argv[3]);

class Node {
  constructor(name) {
    Object.assign(this, {name, attributes: {}, children: [], style: {}, text: ""});
    this.classList = {add: (one) => this.setAttribute("class", `${this.attributes.class} ${one}`)};
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...nodes) {
    for (const node of nodes) {
      if (typeof node === "string") {
        const text = new Node("#text");
        text.text = node;
        this.children.push(text);
      } else if (node instanceof Node) {
        this.children.push(node);
      } else {
        throw new Error(`not a node: ${node}`);
      }
    }
  }
  replaceChildren(...nodes) {
    this.children = [];
    this.append(...nodes);
  }
  get clientWidth() { return pageWidth - 58; }
  get textContent() { return this.text + this.children.map((one) => one.textContent).join(""); }
  getContext() { return {measureText: (text) => ({width: 6.5 * text.length})}; }
  find(name) {
    return [...(this.name === name ? [this] : []), ...this.children.flatMap((one) =>
      one.find(name))];
  }
}

const data = [...page.matchAll(/class="data">(.*?)<\/script>/gs)].map((found) => {
  const node = new Node("script");
  node.append(found[1]);
  return node;
});
const verdicts = new Node("div");
const sections = data.map(() => new Node("section"));
const blank = Object.assign(new Node("svg"), {namespaceURI: "svg"});
globalThis.document = {
  body: new Node("body"),
  getElementById: (id) => ({blank, verdicts})[id] || sections[Number(id.split("-")[1])],
  querySelectorAll: () => data,
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
  addEventListener: () => 0,
};
globalThis.window = {addEventListener: () => 0};
globalThis.getComputedStyle = () => ({fontFamily: "sans-serif"});

(0, eval)(page.slice(page.lastIndexOf("<script>") + 8, page.lastIndexOf("</script>")));

// The horizontal span of a shape; null for what has none.
function spanOf(node) {
  const at = (name) => Number(node.attributes[name]);
  if (node.name === "rect") return [at("x"), at("x") + at("width")];
  if (node.name === "circle") return [at("cx"), at("cx")];
  if (node.name === "line") return [at("x1"), at("x2")];
  if (node.name === "polyline") {
    const xs = node.attributes.points.split(" ").map((one) => Number(one.split(",")[0]));
    return [Math.min(...xs), Math.max(...xs)];
  }
  if (node.name !== "text") return null;
  const width = 6.5 * node.textContent.length, anchor = node.attributes["text-anchor"];
  const from = at("x") - (anchor === "end" ? width : anchor === "middle" ? width / 2 : 0);
  return [from, from + width];
}

function outsideOf(picture) {
  const width = Number(picture.attributes.width), height = Number(picture.attributes.height);
  return picture.children.filter((node) => {
    const span = spanOf(node);
    const y = Number(node.attributes.y || node.attributes.cy || 0);
    return span && !(span[0] >= -1 && span[1] <= width + 1 && y >= 0 && y <= height);
  }).map((node) => `${node.name} ${JSON.stringify(node.attributes)} ${node.textContent}`);
}

const verdictOf = (section) => ({
  title: section.find("a")[0].textContent,
  name: section.find("small")[0].textContent,
  sentences: section.find("li").map((node) => ({state: node.attributes.class,
    text: node.textContent})),
  next: section.find("p")[0].textContent.replace("Next step: ", ""),
});

const all = (name) => sections.flatMap((section) => section.find(name));
console.log(JSON.stringify({
  title: globalThis.document.title,
  verdicts: verdicts.find("section").map(verdictOf),
  notes: all("p").map((node) => node.textContent),
  tables: all("table").map((node) => node.textContent),
  figures: all("figure").map((node) => ({
    title: node.find("h4")[0].textContent,
    axes: node.find("div").filter((one) => /^axis/.test(one.attributes.class || "")).map((one) =>
      one.textContent),
    outside: node.find("svg").flatMap(outsideOf),
    colours: Object.fromEntries(node.find("circle").concat(node.find("rect")).map((one) =>
      [one.textContent.split(/[,:]/)[0], one.attributes.fill])),
    text: node.find("svg").map((one) => one.textContent).join(" "),
  })),
}));
