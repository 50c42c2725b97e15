// Data blocks -> lanes of rows. A row holds events that never overlap, ordered by start:
// s, e: start and end in ns; n: name id; busy: prefix sums of duration (busy[i] = time before event i).

const MAX_DEPTH = 96; // rows of one lane; deeper nesting is counted, not drawn

async function inflate(base64) {
  const text = base64.trim();
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A column is stored in planes of seven bits; the eighth says that a value goes on in the next plane.
function readColumn(bytes, cursor, out) {
  let where = null;
  let count = out.length;
  let scale = 1;
  while (count) {
    const at = cursor.at;
    if (at + count > bytes.length) throw new Error('the timeline data is cut off');
    let more = 0;
    for (let i = 0; i < count; i++) {
      const b = bytes[at + i];
      const j = where ? where[i] : i;
      out[j] = where ? out[j] + (b & 127) * scale : b & 127;
      if (b > 127) more++;
    }
    cursor.at += count;
    if (!more) return out;
    const next = new Uint32Array(more);
    for (let i = 0, k = 0; i < count; i++) if (bytes[at + i] > 127) next[k++] = where ? where[i] : i;
    where = next;
    count = more;
    scale *= 128;
  }
  return out;
}

function emptyRow(m) {
  return {s: new Float64Array(m), e: new Float64Array(m), n: new Uint16Array(m), busy: new Float64Array(m + 1), m};
}

// Events of a lane come ordered by start, the longer first, so the first row that is free is the
// nesting depth; on streams whose events overlap it is the least number of rows.
function layRows(s, d, n, from, to, linked) {
  const last = new Float64Array(MAX_DEPTH).fill(-1);
  const depth = new Uint8Array(to - from);
  const counts = new Uint32Array(MAX_DEPTH + 1);
  for (let i = from; i < to; i++) {
    let k = 0;
    while (k < MAX_DEPTH && last[k] > s[i]) k++;
    if (k < MAX_DEPTH) last[k] = s[i] + d[i];
    depth[i - from] = k;
    counts[k]++;
  }
  const rows = [];
  for (let k = 0; k < MAX_DEPTH && counts[k]; k++) rows.push(emptyRow(counts[k]));
  const filled = new Uint32Array(rows.length);
  let next = 0;
  for (let i = from; i < to; i++) {
    const k = depth[i - from];
    const isLinked = next < linked.length && linked[next][0] === i;
    if (isLinked) next++;
    if (k >= rows.length) continue;
    const row = rows[k];
    const j = filled[k]++;
    if (isLinked) {
      if (!row.link) row.link = new Map();
      row.link.set(j, linked[next - 1][1]);
    }
    row.s[j] = s[i];
    row.e[j] = s[i] + d[i];
    row.n[j] = n[i];
    row.busy[j + 1] = row.busy[j] + d[i];
  }
  return {rows, deep: counts[MAX_DEPTH]};
}

// [place, number] of the events of a group that other ranks have too, in order of place.
function readLinks(bytes, cursor, count) {
  const places = readColumn(bytes, cursor, new Float64Array(count));
  const numbers = readColumn(bytes, cursor, new Float64Array(count));
  const links = new Array(count);
  let place = 0;
  let number = 0;
  for (let i = 0; i < count; i++) {
    place += places[i];
    number += numbers[i] % 2 ? -(numbers[i] + 1) / 2 : numbers[i] / 2;
    links[i] = [place, number];
  }
  return links;
}

// A sampled curve as a row: `v` is its height as a share of the lane, each value until the next.
function readCounter(bytes, cursor, meta, [label, group, unit, top, count]) {
  const row = emptyRow(count);
  readColumn(bytes, cursor, row.s);
  const levels = readColumn(bytes, cursor, new Float64Array(count));
  row.v = levels.map((level) => level / meta.levels);
  let now = 0;
  for (let i = 0; i < count; i++) { now += row.s[i]; row.s[i] = now * meta.tick; }
  const steps = Array.from(row.s.subarray(1), (t, i) => t - row.s[i]).sort((a, b) => a - b);
  const hold = 5 * (steps[steps.length >> 1] || meta.span);
  for (let i = 0; i < count; i++) row.e[i] = Math.min(i + 1 < count ? row.s[i + 1] : meta.span, row.s[i] + hold);
  return {label, kind: 'counter', group, unit, top, rows: [row], open: true, y: 0, h: 0};
}

function decode(bytes, meta) {
  const cursor = {at: 0};
  const lanes = [];
  let events = 0;
  let deep = 0;
  meta.groups.forEach((group, g) => {
    const total = group.lanes.reduce((sum, lane) => sum + lane[2], 0);
    const s = readColumn(bytes, cursor, new Float64Array(total));
    const d = readColumn(bytes, cursor, new Float64Array(total));
    const n = readColumn(bytes, cursor, new Uint16Array(total));
    const links = readLinks(bytes, cursor, meta.links[g]);
    let at = 0;
    let link = 0;
    for (const [label, kind, count] of group.lanes) {
      let now = 0;
      for (let i = at; i < at + count; i++) {
        now += s[i];
        s[i] = now * meta.tick;
        d[i] *= meta.tick;
      }
      let last = link;
      while (last < links.length && links[last][0] < at + count) last++;
      const laid = layRows(s, d, n, at, at + count, links.slice(link, last));
      link = last;
      lanes.push({label, kind, group: g, rows: laid.rows, open: true, y: 0, h: 0});
      deep += laid.deep;
      at += count;
    }
    events += total;
  });
  // Counters stand below the streams of their rank, above its threads.
  for (const declared of meta.counters) {
    const counter = readCounter(bytes, cursor, meta, declared);
    let place = lanes.findIndex((lane) => lane.group === counter.group && lane.kind === 'thread');
    if (place < 0) place = lanes.reduce((last, lane, i) => (lane.group <= counter.group ? i + 1 : last), 0);
    lanes.splice(place, 0, counter);
  }
  return {lanes, events, deep};
}

// First event that ends after t; first event from `from` on that starts at or after t.
function firstEnding(row, t) {
  let a = 0;
  let b = row.m;
  while (a < b) { const m = (a + b) >> 1; if (row.e[m] <= t) a = m + 1; else b = m; }
  return a;
}
function firstStarting(row, t, from) {
  let a = from;
  let b = row.m;
  while (a < b) { const m = (a + b) >> 1; if (row.s[m] < t) a = m + 1; else b = m; }
  return a;
}
