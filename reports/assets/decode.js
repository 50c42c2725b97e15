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
function layRows(s, d, n, from, to) {
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
  for (let i = from; i < to; i++) {
    const k = depth[i - from];
    if (k >= rows.length) continue;
    const row = rows[k];
    const j = filled[k]++;
    row.s[j] = s[i];
    row.e[j] = s[i] + d[i];
    row.n[j] = n[i];
    row.busy[j + 1] = row.busy[j] + d[i];
  }
  return {rows, deep: counts[MAX_DEPTH]};
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
    let at = 0;
    for (const [label, kind, count] of group.lanes) {
      let now = 0;
      for (let i = at; i < at + count; i++) {
        now += s[i];
        s[i] = now * meta.tick;
        d[i] *= meta.tick;
      }
      const laid = layRows(s, d, n, at, at + count);
      lanes.push({label, kind, group: g, rows: laid.rows, open: true, y: 0, h: 0});
      deep += laid.deep;
      at += count;
    }
    events += total;
  });
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
