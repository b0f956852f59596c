// How numbers are written.

const whole = new Intl.NumberFormat("en");

export const count = (number) => whole.format(number);

export function percent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 0 && share > 0) return "<1 %";
  if (rounded === 100 && share < 1) return ">99 %";
  return `${rounded} %`;
}

export const score = (number) => number.toFixed(3).replace("-", "−");

export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  const power = Math.min(3, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toPrecision(3)} ${["", "kB", "MB", "GB"][power]}`;
}

export const date = (text) => new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" }).format(new Date(text));

// The probability of a score, read off a curve [[score, probability], ...]; null without one.
export function chance(curve, value) {
  if (!curve.length) return null;
  if (value <= curve[0][0]) return curve[0][1];
  for (let k = 1; k < curve.length; k += 1) {
    const [x0, y0] = curve[k - 1], [x1, y1] = curve[k];
    if (value <= x1) return x1 === x0 ? y1 : y0 + ((value - x0) / (x1 - x0)) * (y1 - y0);
  }
  return curve.at(-1)[1];
}

export function make(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...inside);
  return made;
}
