// Sums over a stretch of time: how long each lane was busy in it, and which names took most of it.

const MOST_SUMMED = 8;   // names that are listed

// Time of a row inside [a, b): prefix sums, less what sticks out at both ends.
function busyWithin(row, a, b) {
  const first = firstEnding(row, a);
  const last = firstStarting(row, b, first);
  if (last <= first) return {busy: 0, count: 0, first, last};
  let busy = row.busy[last] - row.busy[first];
  busy -= Math.max(0, a - row.s[first]) + Math.max(0, row.e[last - 1] - b);
  return {busy, count: last - first, first, last};
}

// The mean of a sampled curve in [a, b), or null where nothing is known.
function meanWithin(row, a, b) {
  let known = 0;
  let sum = 0;
  for (let i = firstEnding(row, a); i < row.m && row.s[i] < b; i++) {
    const length = Math.min(row.e[i], b) - Math.max(row.s[i], a);
    known += length;
    sum += length * row.v[i];
  }
  return known > 0 ? sum / known : null;
}

// Sums of [a, b): one entry a lane that has anything in it, and the names that took most device
// time (host time where no stream was chosen from). A name counts with all its events' own time.
function sumUp(lanes, names, a, b) {
  const perLane = [];
  const totals = new Map();
  const device = lanes.some((lane) => lane.kind === 'stream');
  lanes.forEach((lane, index) => {
    if (lane.kind === 'counter') {
      const mean = meanWithin(lane.rows[0], a, b);
      if (mean !== null) perLane.push({index, mean: mean * lane.top});
      return;
    }
    let busy = 0;
    let count = 0;
    lane.rows.forEach((row, depth) => {
      const part = busyWithin(row, a, b);
      count += part.count;
      if (lane.kind === 'stream' || depth === 0) busy += part.busy;
      if (device ? lane.kind !== 'stream' : lane.kind !== 'thread' || depth > 0) return;
      for (let i = part.first; i < part.last; i++) {
        const time = Math.min(row.e[i], b) - Math.max(row.s[i], a);
        const old = totals.get(row.n[i]);
        if (old) { old.time += time; old.count++; } else totals.set(row.n[i], {time, count: 1});
      }
    });
    if (count) perLane.push({index, busy: Math.min(busy, lane.kind === 'stream' && lane.rows.length > 1 ? Infinity : b - a), count});
  });
  const top = [...totals].sort((x, y) => y[1].time - x[1].time).slice(0, MOST_SUMMED)
    .map(([id, total]) => ({name: names[id][2] || names[id][0], ...total}));
  return {perLane, top};
}
