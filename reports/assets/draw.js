// Painting. Only visible rows are touched; a row costs O(pixels × log n), however many events it has.

const ROW = 17;          // height of a row of events
const GAP = 7;           // space between lanes
const RULER = 26;
const HEADING = 24;      // name of a rank above its lanes
const COUNTER = 34;      // height of a sampled curve
const LOOK = 16;         // events of a pixel column that are looked at to choose its colour
const FONT = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

function duration(ns) {
  const a = Math.abs(ns);
  const [v, unit] = a >= 1e9 ? [ns / 1e9, 's'] : a >= 1e6 ? [ns / 1e6, 'ms'] : a >= 1e3 ? [ns / 1e3, 'µs'] : [ns, 'ns'];
  return `${unit === 'ns' ? v.toFixed(0) : Math.abs(v) >= 100 ? v.toFixed(1) : v.toFixed(2)}\u00a0${unit}`;
}

function tickLabel(ns, step) {
  const [scale, unit] = step >= 1e9 ? [1e9, 's'] : step >= 1e6 ? [1e6, 'ms'] : step >= 1e3 ? [1e3, 'µs'] : [1, 'ns'];
  const digits = Math.max(0, Math.min(3, -Math.floor(Math.log10(step / scale) + 1e-9)));
  return `${(ns / scale).toFixed(digits)} ${unit}`;
}

function niceStep(span, most) {
  const raw = span / Math.max(most, 1);
  const base = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((k) => k * base).find((k) => k >= raw) || 10 * base;
}

function luminance(hex) {
  const c = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
}

function readTheme(classes) {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const fill = classes.map((name) => get(`c-${name}`) || '#888888');
  return {
    page: get('page'), text: get('text'), dim: get('dim'), line: get('line'), soft: get('soft'), band: get('band'),
    focus: get('focus'), fill, ink: fill.map((hex) => (luminance(hex) > 0.179 ? '#000000' : '#ffffff')),
  };
}

function fitText(cx, text, width) {
  const most = Math.floor(width / 5.6);
  if (most < 3) return '';
  let shown = text.length > most ? text.slice(0, most) : text;
  while (shown.length > 2 && cx.measureText(shown).width > width) {
    shown = shown.slice(0, Math.min(shown.length - 1, Math.floor((shown.length * width) / cx.measureText(shown).width)));
  }
  return shown.length < text.length ? `${shown.slice(0, -1)}…` : shown;
}

// A gap says how long it is, or nothing: half a number would be a wrong one.
function fitIdle(cx, word, ns, width) {
  return [`${word} ${duration(ns)}`, duration(ns)].find((text) => cx.measureText(text).width <= width) || '';
}

// Draws one row into [left, right) at y. Events of two pixels and more are exact; shorter ones are
// summed by pixel column: the opacity is the busy share from the prefix sums, the colour that of the
// longest. The last event of a column may be long: it goes back to the exact branch.
function drawRow(cx, row, view, theme, names, y, height, strength, labels) {
  const {left, right, t0, t1} = view;
  const scale = (right - left) / (t1 - t0);
  let i = firstEnding(row, t0);
  while (i < row.m && row.s[i] < t1) {
    const x = (row.s[i] - t0) * scale;
    const width = (row.e[i] - row.s[i]) * scale;
    const id = names[row.n[i]];
    if (width >= 2) {
      const a = Math.max(left, left + x);
      const b = Math.min(right, left + x + width);
      const idle = theme.classes[id[1]].startsWith('idle');
      cx.globalAlpha = strength;
      cx.fillStyle = theme.fill[id[1]];
      if (idle) cx.fillRect(a, y + height / 2 - 1.5, Math.max(1, b - a - 0.6), 3);
      else cx.fillRect(a, y, Math.max(1, b - a - (b - a > 6 ? 0.6 : 0)), height);
      if (labels && b - a > 26) {
        const text = idle ? fitIdle(cx, id[0], row.e[i] - row.s[i], b - a - 24) : fitText(cx, id[2] || id[0], b - a - 8);
        if (text && idle) {
          const w = cx.measureText(text).width;
          const c = (a + b) / 2;
          cx.fillStyle = theme.page;
          cx.fillRect(c - w / 2 - 5, y, w + 10, height);
          cx.fillStyle = theme.dim;
          cx.fillText(text, c - w / 2, y + height - 4.5);
        } else if (text) {
          cx.fillStyle = theme.ink[id[1]];
          cx.fillText(text, a + 4, y + height - 4.5);
        }
      }
      i++;
      continue;
    }
    const column = Math.floor(x);
    let j = Math.max(i + 1, firstStarting(row, t0 + (column + 1) / scale, i));
    if (j - i > 1 && (row.e[j - 1] - row.s[j - 1]) * scale >= 2) j--;
    let best = i;
    for (let k = i + 1, end = Math.min(j, i + LOOK); k < end; k++) if (row.e[k] - row.s[k] > row.e[best] - row.s[best]) best = k;
    const kind = names[row.n[best]][1];
    const thin = theme.classes[kind].startsWith('idle');
    cx.globalAlpha = strength * Math.max(0.2, Math.min(1, (row.busy[j] - row.busy[i]) * scale));
    cx.fillStyle = theme.fill[kind];
    if (column >= 0) cx.fillRect(left + column, thin ? y + height / 2 - 1.5 : y, 1, thin ? 3 : height);
    i = j;
  }
  cx.globalAlpha = 1;
}

// Draws a sampled curve: a filled step for each value, or the mean of a pixel column's values.
function drawCounter(cx, row, view, theme, y, height) {
  const {left, right, t0, t1} = view;
  const scale = (right - left) / (t1 - t0);
  cx.fillStyle = theme.soft;
  cx.fillRect(left, y, right - left, height);
  cx.fillStyle = theme.fill[0];
  cx.globalAlpha = 0.75;
  let i = firstEnding(row, t0);
  while (i < row.m && row.s[i] < t1) {
    const a = Math.max(left, left + (row.s[i] - t0) * scale);
    let level = row.v[i];
    let end = left + (row.e[i] - t0) * scale;
    let j = i + 1;
    if (end - a < 1) {
      let sum = level;
      while (j < row.m && left + (row.e[j] - t0) * scale < a + 1) sum += row.v[j++];
      level = sum / (j - i);
      end = a + 1;
    }
    const tall = Math.max(1, level * height);
    cx.fillRect(a, y + height - tall, Math.max(1, Math.min(right, end) - a), tall);
    i = j;
  }
  cx.globalAlpha = 1;
}
