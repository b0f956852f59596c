// What the model looked at, drawn over the image and the words.

import { make, percent } from "./words.js";

const DARKEST = 0.78;
const OUTLINES = 3;
const ALIKE = 0.4;

// Weights on a scale from 0 (least) to 1 (most); attention is compared with the even share.
function brightness(looked) {
  const shares = looked.shares;
  if (looked.of === "attention") {
    const even = 1 / shares.length;
    return shares.map((share) => Math.min(1, Math.max(0, (Math.log2(Math.max(share, 1e-9) / even) + 2) / 4)));
  }
  const low = Math.min(...shares), high = Math.max(...shares);
  return shares.map((share) => (high > low ? (share - low) / (high - low) : 1));
}

export function drawLooked(looked, canvas, outlines, shape) {
  const bright = brightness(looked);
  const cells = looked.boxes.map((box, place) => ({ box, bright: bright[place] }));
  canvas.hidden = !looked.tiled;
  outlines.toggleAttribute("hidden", looked.tiled);
  if (looked.tiled) veil(cells, canvas);
  else outline(looked, outlines, shape);
}

// One pixel a cell, enlarged smoothly by the browser.
function veil(cells, canvas) {
  const some = cells.filter(({ box }) => box[2] - box[0] < 1 || box[3] - box[1] < 1);
  const side = Math.round(Math.sqrt(some.length));
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d");
  const pixels = pen.createImageData(side, side);
  for (const { box, bright } of some) {
    const x = Math.floor(((box[0] + box[2]) / 2) * side), y = Math.floor(((box[1] + box[3]) / 2) * side);
    pixels.data.set([8, 14, 12, Math.round(255 * DARKEST * (1 - bright))], 4 * (y * side + x));
  }
  pen.putImageData(pixels, 0, 0);
}

const area = ([left, top, right, bottom]) => Math.max(0, right - left) * Math.max(0, bottom - top);

function overlap(a, b) {
  const both = area([Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])]);
  return both / (area(a) + area(b) - both || 1);
}

// The regions that count most; of regions that nearly coincide, the first.
function foremost({ boxes, shares }) {
  const chosen = [];
  for (const place of shares.map((_, each) => each).sort((a, b) => shares[b] - shares[a])) {
    if (chosen.length < OUTLINES && chosen.every((other) => overlap(boxes[place], boxes[other]) < ALIKE)) chosen.push(place);
  }
  return chosen;
}

// Numbered outlines over a darker image; the first is the strongest.
function outline(looked, svg, shape) {
  const wide = 100 * shape, drawn = (name, attributes, ...inside) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  svg.setAttribute("viewBox", `0 0 ${wide} 100`);
  const whole = { x: 0, y: 0, width: wide, height: 100 };
  const places = foremost(looked).map((place) => looked.boxes[place]).map(([left, top, right, bottom]) => ({ x: left * wide, y: top * 100, width: (right - left) * wide, height: (bottom - top) * 100 }));
  const holes = places.map((place) => drawn("rect", { ...place, fill: "black" }));
  svg.replaceChildren(drawn("mask", { id: "holes" }, drawn("rect", { ...whole, fill: "white" }), ...holes), drawn("rect", { ...whole, class: "shade", mask: "url(#holes)" }));
  [...places.entries()].reverse().forEach(([rank, place]) => {
    const x = Math.max(4, Math.min(wide - 4, place.x + 4)), y = Math.max(4, place.y + 4);
    svg.append(drawn("rect", { ...place, class: "halo" }), drawn("rect", { ...place, class: `frame f${rank + 1}` }), drawn("circle", { cx: x, cy: y, r: 3.6 }), drawn("text", { x, y: y + 1.8 }, String(rank + 1)));
  });
}

export function shadedWords(looked) {
  const words = looked.words.map((word, place) => ({ word, share: looked.word_shares[place] ?? 0 }));
  const shown = words.filter(({ word }) => !/^(\[(CLS|SEP|PAD)\]|<(start|end|s)>|<\/s>)$/.test(word));
  const low = Math.min(0, ...shown.map((each) => each.share)), high = Math.max(...shown.map((each) => each.share), 1e-9);
  return shown.flatMap(({ word, share }) => [make("span", { className: `w${Math.round((4 * (share - low)) / (high - low || 1))}` }, word), " "]);
}

export function describeLooked(looked) {
  const most = Math.max(...looked.shares);
  const sum = looked.shares.reduce((all, each) => all + each, 0);
  const parts = [];
  if (looked.of === "attention") parts.push(`The answer came from the bright parts: the brightest of ${looked.shares.length} had ${percent(most)} of the attention, where an even share is ${percent(1 / looked.shares.length)}.`);
  else if (sum > 0 && most > 0) parts.push(`The brighter a part, the more it adds to the score: the brightest of ${looked.shares.length} adds ${percent(Math.min(1, most / sum))} of it.`);
  else parts.push("The darker a part, the more it speaks against the words; taken together, the parts speak against them.");
  if (!looked.tiled) {
    const each = foremost(looked).map((place, rank) => `${rank + 1}${sum > 0 ? ` (${percent(Math.max(0, Math.min(1, looked.shares[place] / sum)))})` : ""}`);
    parts[0] = `${looked.of === "attention" ? "The answer came above all from the numbered regions" : "The numbered regions add most to the score"}: ${each.join(", ")}.`;
  }
  if (looked.views > 1) parts.push(`The model has ${looked.views} views of this image; view ${looked.view} fits best.`);
  if (looked.word_shares.length) parts.push("Words are shaded in the same way.");
  return parts.join(" ");
}
