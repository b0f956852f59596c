// What the model looked at, drawn over the image and the words.

import { make, percent } from "./words.js";

const DARKEST = 0.78;
const OUTLINES = 5;

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

export function drawLooked(looked, canvas, outlines) {
  const bright = brightness(looked);
  const cells = looked.boxes.map((box, place) => ({ box, bright: bright[place], share: looked.shares[place] }));
  canvas.hidden = !looked.tiled;
  outlines.toggleAttribute("hidden", looked.tiled);
  if (looked.tiled) veil(cells, canvas);
  else outline(cells, outlines);
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

function outline(cells, svg) {
  svg.replaceChildren();
  for (const { box } of [...cells].sort((a, b) => b.share - a.share).slice(0, OUTLINES)) {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const [left, top, right, bottom] = box;
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) rect.setAttribute(name, value);
    svg.append(rect);
  }
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
  if (!looked.tiled) parts[0] = looked.of === "attention" ? "The answer came from the outlined regions above all." : "The outlined regions add most to the score.";
  if (looked.views > 1) parts.push(`The model has ${looked.views} views of this image; view ${looked.view} fits best.`);
  if (looked.word_shares.length) parts.push("Words are shaded in the same way.");
  return parts.join(" ");
}
