// The timeline: state, layout, input. `meta` and `lanes` never change after decoding.

function openTimeline(meta, lanes, events, deep) {
  const $ = (id) => document.getElementById(`gp-${id}`);
  const canvas = $('canvas');
  const map = $('map');
  const detail = $('detail');
  const say = (key, values = {}) => ((values.count === 1 || values.count === '1') && meta.words[`timeline.${key}.one`] || meta.words[`timeline.${key}`] || key).replace(/\{(\w+)\}/g, (m, name) => (name in values ? values[name] : m));
  const cx = canvas.getContext('2d', {alpha: false});
  const mx = map.getContext('2d', {alpha: false});
  const span = Math.max(meta.span, 1);
  const shortest = Math.min(100, span); // ns across the whole canvas at full zoom
  const many = meta.groups.length > 1;
  let theme = null;
  let t0 = 0;
  let t1 = span;
  let scroll = 0;
  let width = 0;
  let height = 0;
  let labels = 190;
  let content = 0;
  let selected = null;     // {lane, row, i}
  let hovered = null;
  let matches = null;      // per lane, per row: the matching events as a row of their own
  let extents = [];        // top and bottom of each rank's lanes
  let overview = null;     // the minimap's picture
  let pending = false;
  let range = null;        // [a, b): the stretch that is summed up
  const same = new Map();  // number of a collective -> its marks on all ranks, by rank
  lanes.forEach((lane, index) => lane.rows.forEach((row, k) => {
    if (row.link) for (const [i, number] of row.link) {
      if (!same.has(number)) same.set(number, []);
      same.get(number).push({lane: index, row: k, i});
    }
  }));
  const linkOf = (mark) => (mark && lanes[mark.lane].rows[mark.row].link ? lanes[mark.lane].rows[mark.row].link.get(mark.i) : undefined);

  if (many) for (const lane of lanes) lane.open = lane.group === meta.home[2] || lane.kind === 'stream' || lane.kind === 'counter';

  function layout() {
    extents = [];
    let y = 0;
    let group = -1;
    for (const lane of lanes) {
      if (lane.group !== group) {
        group = lane.group;
        if (many) y += HEADING;
      }
      lane.y = y;
      if (!extents[group]) extents[group] = [y, y];
      lane.h = lane.kind === 'counter' ? COUNTER : (lane.open ? lane.rows.length : 1) * ROW;
      y += lane.h + GAP;
      extents[group][1] = y;
    }
    content = y;
  }

  const toX = (t) => labels + ((t - t0) / (t1 - t0)) * (width - labels);
  const toTime = (x) => t0 + ((x - labels) / (width - labels)) * (t1 - t0);
  const rowsOf = (lane) => (lane.open ? lane.rows : lane.rows.slice(0, 1));

  function request() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); });
  }

  function clamp() {
    const length = Math.min(span, t1 - t0);
    t0 = Math.max(0, Math.min(t0, span - length));
    t1 = t0 + length;
    scroll = Math.max(0, Math.min(scroll, content + RULER + 8 - height));
    request();
  }
  function show(a, b) {
    const length = Math.min(span, Math.max(shortest, b - a));
    t0 = (a + b - length) / 2;
    t1 = t0 + length;
    clamp();
  }
  function zoom(factor, x) {
    const at = x === undefined ? (t0 + t1) / 2 : toTime(Math.max(labels, x));
    const length = Math.min(span, Math.max(shortest, (t1 - t0) * factor));
    const part = (at - t0) / (t1 - t0);
    t0 = at - part * length;
    t1 = t0 + length;
    clamp();
  }
  function pan(share) { const d = (t1 - t0) * share; t0 += d; t1 += d; clamp(); }

  // ---- painting ---------------------------------------------------------------------------------
  function draw() {
    if (!width) return;
    cx.fillStyle = theme.page;
    cx.fillRect(0, 0, width, height);
    cx.font = FONT;
    const view = {left: labels, right: width, t0, t1};
    const step = niceStep(t1 - t0, (width - labels) / 110);
    cx.fillStyle = theme.line;
    for (let t = Math.ceil(t0 / step) * step; t < t1; t += step) cx.fillRect(Math.round(toX(t)), RULER, 1, height);
    for (const [a, b, group] of meta.windows) {
      if (b <= t0 || a >= t1) continue;
      const x = Math.max(labels, toX(a));
      const [top, bottom] = extents[group];
      cx.fillStyle = theme.band;
      cx.fillRect(x, RULER + top - scroll, Math.max(1.5, Math.min(width, toX(b)) - x), bottom - top);
    }
    const strength = matches ? 0.16 : 1;
    lanes.forEach((lane, index) => {
      const top = RULER + lane.y - scroll;
      if (top + lane.h < RULER || top > height) return;
      if (lane.kind === 'counter') { drawCounter(cx, lane.rows[0], view, theme, top, COUNTER); return; }
      rowsOf(lane).forEach((row, k) => {
        const y = top + k * ROW;
        if (y + ROW < RULER || y > height) return;
        drawRow(cx, row, view, theme, meta.names, y, ROW - 2, strength, !matches);
        if (matches && matches.rows[index][k]) drawRow(cx, matches.rows[index][k], view, theme, meta.names, y, ROW - 2, 1, true);
      });
    });
    if (range) {
      const a = Math.max(labels, toX(range[0]));
      const b = Math.min(width, toX(range[1]));
      cx.fillStyle = theme.focus;
      cx.globalAlpha = 0.14;
      cx.fillRect(a, RULER, Math.max(0, b - a), height);
      cx.globalAlpha = 1;
      for (const x of [toX(range[0]), toX(range[1])]) if (x >= labels && x <= width) cx.fillRect(x - 0.5, RULER, 1, height);
    }
    drawSame();
    for (const mark of [hovered, selected]) {
      if (!mark || (mark.row && !lanes[mark.lane].open)) continue;
      const row = lanes[mark.lane].rows[mark.row];
      const a = Math.max(labels, toX(row.s[mark.i]));
      const b = Math.min(width, toX(row.e[mark.i]));
      if (b < labels || a > width) continue;
      cx.strokeStyle = mark === selected ? theme.text : theme.dim;
      cx.lineWidth = mark === selected ? 2 : 1;
      cx.strokeRect(a, RULER + lanes[mark.lane].y - scroll + mark.row * ROW, Math.max(3, b - a), (lanes[mark.lane].kind === 'counter' ? COUNTER : ROW) - 2);
    }
    drawLabels();
    cx.fillStyle = theme.soft;
    cx.fillRect(0, 0, width, RULER);
    cx.fillStyle = theme.dim;
    for (let t = Math.ceil(t0 / step) * step; t < t1; t += step) {
      const x = Math.round(toX(t));
      cx.fillRect(x, RULER - 5, 1, 5);
      if (x + 8 < width) cx.fillText(tickLabel(t, step), x + 5, 17);
    }
    cx.fillText(fitText(cx, duration(t1 - t0), labels - 16), 8, 17);
    drawBar();
    drawMap();
  }

  // The selected collective on the other ranks: outlined, and joined from rank to rank.
  function drawSame() {
    const marks = same.get(linkOf(selected));
    if (!marks) return;
    let before = null;
    cx.strokeStyle = theme.text;
    for (const mark of marks) {
      const row = lanes[mark.lane].rows[mark.row];
      const y = RULER + lanes[mark.lane].y - scroll + (lanes[mark.lane].open ? mark.row : 0) * ROW;
      const a = toX(row.s[mark.i]);
      const b = toX(row.e[mark.i]);
      cx.lineWidth = 1.5;
      if (b > labels && a < width) cx.strokeRect(Math.max(labels, a), y, Math.max(3, Math.min(width, b) - Math.max(labels, a)), ROW - 2);
      if (before) {
        cx.lineWidth = 1;
        cx.globalAlpha = 0.6;
        for (const [from, to] of [[before.a, a], [before.b, b]]) {
          cx.beginPath();
          cx.moveTo(Math.max(labels, Math.min(width, from)), before.y + ROW - 2);
          cx.lineTo(Math.max(labels, Math.min(width, to)), y);
          cx.stroke();
        }
        cx.globalAlpha = 1;
      }
      before = {a, b, y};
    }
  }

  function drawLabels() {
    cx.fillStyle = theme.soft;
    cx.fillRect(0, RULER, labels - 6, height);
    let group = -1;
    for (const lane of lanes) {
      const top = RULER + lane.y - scroll;
      if (lane.group !== group) {
        group = lane.group;
        if (many && top > RULER - HEADING && top < height + HEADING) {
          cx.fillStyle = theme.line;
          cx.fillRect(0, top - HEADING, width, 1);
          cx.fillStyle = theme.text;
          cx.font = `600 ${FONT}`;
          cx.fillText(fitText(cx, meta.groups[group].label, labels - 20), 8, top - 7);
          cx.font = FONT;
        }
      }
      if (top + lane.h < RULER || top > height) continue;
      const y = Math.max(RULER, Math.min(top, top + lane.h - ROW));
      const folds = lane.rows.length > 1;
      if (folds) {
        cx.fillStyle = theme.dim;
        cx.beginPath();
        if (lane.open) { cx.moveTo(8, y + 5); cx.lineTo(16, y + 5); cx.lineTo(12, y + 10); } else { cx.moveTo(10, y + 3); cx.lineTo(15, y + 7.5); cx.lineTo(10, y + 12); }
        cx.fill();
      }
      cx.fillStyle = lane.kind === 'stream' ? theme.text : theme.dim;
      cx.fillText(fitText(cx, lane.label, labels - 30), 20, y + ROW - 6);
      if (lane.kind === 'counter' && top > RULER - 8) cx.fillText(fitText(cx, `0–${amount(lane, 1)}`, labels - 30), 20, top + COUNTER - 4);
    }
  }

  // A height of a counter's lane (a share of it) in its unit.
  const amount = (lane, share) => `${(lane.top * share).toLocaleString('en', {maximumFractionDigits: lane.top < 1000 && lane.unit !== '%' && lane.unit !== 'W' ? 1 : 0})}\u00a0${lane.unit}`;

  function drawBar() {
    const room = height - RULER;
    if (content + 8 <= room) return;
    const size = Math.max(24, (room * room) / (content + 8));
    cx.globalAlpha = 0.35;
    cx.fillStyle = theme.dim;
    cx.fillRect(width - 5, RULER + (scroll / (content + 8 - room)) * (room - size), 3, size);
    cx.globalAlpha = 1;
  }

  function drawMap() {
    const w = map.clientWidth;
    const h = map.clientHeight;
    if (!w || !h || !map.width) return; // not on paper
    if (!overview) {
      overview = document.createElement('canvas');
      overview.width = map.width;
      overview.height = map.height;
      const ox = overview.getContext('2d', {alpha: false});
      ox.scale(map.width / w, map.height / h);
      ox.fillStyle = theme.page;
      ox.fillRect(0, 0, w, h);
      let shown = lanes.filter((lane) => lane.kind === 'stream');
      if (!shown.length) shown = lanes.filter((lane) => lane.rows.length && lane.kind !== 'counter');
      shown = shown.slice(0, 12);
      const each = (h - 8) / Math.max(shown.length, 1);
      shown.forEach((lane, k) => drawRow(ox, lane.rows[0], {left: 0, right: w, t0: 0, t1: span}, theme, meta.names, 4 + k * each, Math.max(1, each - 1), 1, false));
      ox.fillStyle = theme.focus;
      for (const [a, b] of meta.windows) ox.fillRect((a / span) * w, h - 2, Math.max(2, ((b - a) / span) * w), 2);
    }
    mx.drawImage(overview, 0, 0, w, h);
    const a = (t0 / span) * w;
    const b = Math.max(a + 2, (t1 / span) * w);
    mx.globalAlpha = 0.72;
    mx.fillStyle = theme.soft;
    mx.fillRect(0, 0, a, h);
    mx.fillRect(b, 0, w - b, h);
    mx.globalAlpha = 1;
    mx.strokeStyle = theme.text;
    mx.lineWidth = 1;
    mx.strokeRect(a + 0.5, 0.5, Math.max(1, b - a - 1), h - 1);
  }

  function resize() {
    const ratio = window.devicePixelRatio || 1;
    const room = Math.max(260, Math.min(620, Math.round(window.innerHeight * 0.68)));
    canvas.style.height = `${Math.min(room, content + RULER + 10)}px`;
    width = canvas.clientWidth;
    height = canvas.clientHeight;
    labels = width < 560 ? 104 : 190;
    for (const [c, x] of [[canvas, cx], [map, mx]]) {
      c.width = Math.round(c.clientWidth * ratio);
      c.height = Math.round(c.clientHeight * ratio);
      x.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    overview = null;
    clamp();
  }
  function retheme() {
    theme = readTheme(meta.classes);
    theme.classes = meta.classes;
    overview = null;
    request();
  }

  // ---- selection --------------------------------------------------------------------------------
  function describe(mark) {
    const lane = lanes[mark.lane];
    const row = lane.rows[mark.row];
    if (lane.kind === 'counter') {
      const where = many ? `${meta.groups[lane.group].label}, ${lane.label}` : lane.label;
      return `${where} · ${say('counted', {value: amount(lane, row.v[mark.i]), start: duration(row.s[mark.i])})}`;
    }
    const name = meta.names[row.n[mark.i]];
    const kind = meta.words[`class.${meta.classes[name[1]]}`];
    const time = say('selected', {start: duration(row.s[mark.i]), duration: duration(row.e[mark.i] - row.s[mark.i])});
    const where = many ? `${meta.groups[lane.group].label}, ${lane.label}` : lane.label;
    return `${name[0]} · ${kind} · ${time} · ${where}${describeSame(mark)}`;
  }
  // When the other ranks came to the same collective: who was last keeps all of them waiting.
  function describeSame(mark) {
    const marks = same.get(linkOf(mark));
    if (!marks || marks.length < 2) return '';
    const starts = marks.map((one) => lanes[one.lane].rows[one.row].s[one.i]);
    const last = starts.indexOf(Math.max(...starts));
    const late = meta.groups[lanes[marks[last].lane].group].label;
    return ` · ${say('same', {count: marks.length, late, after: duration(starts[last] - Math.min(...starts))})}`;
  }
  function nextSame() {
    const marks = same.get(linkOf(selected));
    if (!marks) return;
    const at = marks.findIndex((one) => one.lane === selected.lane);
    select(marks[(at + 1) % marks.length], true);
  }
  function select(mark, reveal) {
    selected = mark;
    detail.setAttribute('aria-live', 'polite');
    detail.textContent = mark ? describe(mark) : '';
    if (mark && reveal) {
      const lane = lanes[mark.lane];
      const row = lane.rows[mark.row];
      if (mark.row) { lane.open = true; layout(); }
      const a = row.s[mark.i];
      const b = row.e[mark.i];
      if (a < t0 || b > t1) { const half = Math.max((t1 - t0) / 2, (b - a) * 0.6); t0 = (a + b) / 2 - half; t1 = (a + b) / 2 + half; }
      const y = lane.y + mark.row * ROW;
      if (y < scroll) scroll = y; else if (y + ROW > scroll + height - RULER) scroll = y + ROW + 8 - (height - RULER);
      clamp();
    }
    request();
  }
  function hit(x, y) {
    const at = y - RULER + scroll;
    const index = lanes.findIndex((lane) => at >= lane.y && at < lane.y + lane.h);
    if (y < RULER || index < 0) return null;
    const k = lanes[index].kind === 'counter' ? 0 : Math.floor((at - lanes[index].y) / ROW);
    const row = rowsOf(lanes[index])[k];
    if (x < labels || !row) return {lane: index, row: 0, i: -1};
    const slack = ((t1 - t0) / (width - labels)) * 2;
    const i = firstEnding(row, toTime(x) - slack);
    return i < row.m && row.s[i] <= toTime(x) + slack ? {lane: index, row: k, i} : {lane: index, row: k, i: -1};
  }
  function walk(key) {
    if (!selected) {
      for (let lane = 0; lane < lanes.length; lane++) {
        const row = lanes[lane].rows[0];
        const i = row ? firstEnding(row, t0) : 0;
        if (row && i < row.m && lanes[lane].kind !== 'gaps' && lanes[lane].kind !== 'counter') { select({lane, row: 0, i}, true); return; }
      }
      return;
    }
    let {lane, row, i} = selected;
    const middle = (lanes[lane].rows[row].s[i] + lanes[lane].rows[row].e[i]) / 2;
    if (key === 'ArrowRight') i = Math.min(i + 1, lanes[lane].rows[row].m - 1);
    else if (key === 'ArrowLeft') i = Math.max(i - 1, 0);
    else {
      const down = key === 'ArrowDown';
      row += down ? 1 : -1;
      const rows = rowsOf(lanes[lane]);
      if (row < 0 || row >= rows.length) {
        lane += down ? 1 : -1;
        if (!lanes[lane]) return;
        row = down ? 0 : rowsOf(lanes[lane]).length - 1;
      }
      const target = lanes[lane].rows[row];
      if (!target || !target.m) return;
      i = Math.min(target.m - 1, firstEnding(target, middle));
    }
    select({lane, row, i}, true);
  }

  // ---- search -----------------------------------------------------------------------------------
  function search(text) {
    const found = $('found');
    const needle = text.trim().toLowerCase();
    if (!needle) {
      matches = null;
      found.textContent = '';
      request();
      return;
    }
    const wanted = meta.names.map((name) => name[0].toLowerCase().includes(needle));
    let count = 0;
    let total = 0;
    const rows = lanes.map((lane) => lane.rows.map((row) => {
      if (lane.kind === 'counter') return null;
      let m = 0;
      for (let i = 0; i < row.m; i++) if (wanted[row.n[i]]) m++;
      if (!m) return null;
      const out = emptyRow(m);
      out.at = new Uint32Array(m);
      for (let i = 0, j = 0; i < row.m; i++) {
        if (!wanted[row.n[i]]) continue;
        out.s[j] = row.s[i]; out.e[j] = row.e[i]; out.n[j] = row.n[i]; out.at[j] = i;
        out.busy[j + 1] = out.busy[j] + row.e[i] - row.s[i];
        j++;
      }
      count += m;
      total += out.busy[m];
      return out;
    }));
    matches = {rows};
    found.textContent = count ? say('found', {count: count.toLocaleString('en'), total: duration(total)}) : say('found.none');
    request();
  }
  // The match that comes next in time (and, at one time, in the order of lanes).
  function jump(forward) {
    if (!matches) return;
    const here = selected ? [lanes[selected.lane].rows[selected.row].s[selected.i], selected.lane, selected.row] : [forward ? t0 - 1 : t1, -1, -1];
    let best = null;
    const before = (a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2];
    matches.rows.forEach((rows, lane) => rows.forEach((row, k) => {
      if (!row) return;
      const near = firstStarting(row, here[0], 0);
      for (let j = Math.max(0, near - 1); j <= Math.min(row.m - 1, near + 1); j++) {
        const key = [row.s[j], lane, k, row.at[j]];
        const side = before(key, here);
        if (forward ? side <= 0 : side >= 0) continue;
        if (!best || (forward ? before(key, best) < 0 : before(key, best) > 0)) best = key;
      }
    }));
    if (best) select({lane: best[1], row: best[2], i: best[3]}, true);
  }

  // ---- sums -------------------------------------------------------------------------------------
  function sum(a, b) {
    range = b > a ? [Math.max(0, a), Math.min(span, b)] : null;
    const box = $('sum');
    box.replaceChildren();
    box.hidden = !range;
    request();
    if (!range) return;
    const length = range[1] - range[0];
    const {perLane, top} = sumUp(lanes, meta.names, range[0], range[1]);
    const cell = (row, text, tag = 'td') => { const c = document.createElement(tag); c.textContent = text; row.append(c); return c; };
    const table = (title, rows) => {
      const made = document.createElement('table');
      const caption = document.createElement('caption');
      caption.textContent = title;
      made.append(caption);
      for (const [head, ...rest] of rows) {
        const row = made.insertRow();
        cell(row, head, 'th').scope = 'row';
        for (const text of rest) cell(row, text).className = 'n';
      }
      const frame = document.createElement('div');
      frame.tabIndex = 0; // it scrolls
      frame.setAttribute('role', 'group');
      frame.setAttribute('aria-label', title);
      frame.append(made);
      box.append(frame);
    };
    const heading = document.createElement('p');
    heading.textContent = say('sum', {start: duration(range[0]), length: duration(length)});
    box.append(heading);
    table(say('sum.lanes'), perLane.map((part) => {
      const lane = lanes[part.index];
      const name = many ? `${meta.groups[lane.group].label} · ${lane.label}` : lane.label;
      if (part.mean !== undefined) return [name, '', amount(lane, part.mean / lane.top), ''];
      const share = part.busy > length ? '' : `${((100 * part.busy) / length).toFixed(1)}\u00a0%`;
      return [name, say('sum.events', {count: part.count.toLocaleString('en')}), duration(part.busy), share];
    }));
    table(say('sum.names'), top.map((one) => [one.name, say('sum.events', {count: one.count.toLocaleString('en')}), duration(one.time), `${((100 * one.time) / length).toFixed(1)}\u00a0%`]));
  }
  // One end of the stretch: the selected event's, or the view's where nothing is selected.
  function setEnd(isStart) {
    const row = selected && lanes[selected.lane].rows[selected.row];
    const at = row ? (isStart ? row.s[selected.i] : row.e[selected.i]) : isStart ? t0 : t1;
    const old = range || [t0, t1];
    if (isStart) sum(at, Math.max(old[1], at + 1)); else sum(Math.min(old[0], at - 1), at);
  }

  // ---- input ------------------------------------------------------------------------------------
  const pointers = new Map();
  let drag = null;
  let pinch = 0;
  canvas.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls on
    event.preventDefault();
    if (event.shiftKey) { scroll += event.deltaY || event.deltaX; clamp(); } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / (width - labels)); else zoom(1.0018 ** Math.max(-250, Math.min(250, event.deltaY)), event.offsetX);
  }, {passive: false});
  canvas.addEventListener('pointerdown', (event) => {
    pointers.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
    if (event.pointerType === 'mouse') canvas.focus({preventScroll: true});
    drag = {x: event.offsetX, y: event.offsetY, t0, t1, scroll, moved: false, sums: event.shiftKey};
    pinch = 0;
  });
  canvas.addEventListener('pointermove', (event) => {
    if (pointers.has(event.pointerId)) pointers.set(event.pointerId, event.offsetX);
    if (pointers.size === 2) {
      const [a, b] = [...pointers.values()];
      const apart = Math.abs(a - b) || 1;
      if (pinch) zoom(pinch / apart, (a + b) / 2);
      pinch = apart;
      if (drag) drag.moved = true;
    } else if (drag) {
      const dx = event.offsetX - drag.x;
      const dy = event.offsetY - drag.y;
      if (Math.abs(dx) + Math.abs(dy) > 3) { drag.moved = true; canvas.classList.add('dragging'); }
      if (drag.sums) {
        const ends = [toTime(Math.max(labels, drag.x)), toTime(Math.max(labels, event.offsetX))];
        range = [Math.max(0, Math.min(...ends)), Math.min(span, Math.max(...ends))];
        request();
        return;
      }
      const shift = (dx / (width - labels)) * (drag.t1 - drag.t0);
      t0 = drag.t0 - shift;
      t1 = drag.t1 - shift;
      if (event.pointerType === 'mouse') scroll = drag.scroll - dy;
      clamp();
    } else {
      const mark = hit(event.offsetX, event.offsetY);
      hovered = mark && mark.i >= 0 ? mark : null;
      if (!selected) {
        detail.setAttribute('aria-live', 'off');
        detail.textContent = hovered ? describe(hovered) : ready;
      }
      request();
    }
  });
  const release = (event) => {
    pointers.delete(event.pointerId);
    canvas.classList.remove('dragging');
    if (drag && drag.moved && drag.sums && range) sum(range[0], range[1]);
    if (drag && !drag.moved && event.type === 'pointerup') {
      const mark = hit(event.offsetX, event.offsetY);
      if (mark && event.offsetX < labels) { lanes[mark.lane].open = !lanes[mark.lane].open; layout(); clamp(); } else select(mark && mark.i >= 0 ? mark : null, false);
    }
    drag = null;
  };
  canvas.addEventListener('pointerup', release);
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('pointerleave', () => { hovered = null; request(); });
  const keys = {
    w: () => zoom(0.75), '+': () => zoom(0.75), '=': () => zoom(0.75), s: () => zoom(1 / 0.75), '-': () => zoom(1 / 0.75),
    a: () => pan(-0.15), d: () => pan(0.15), 0: () => show(0, span),
    f: () => { if (selected) { const row = lanes[selected.lane].rows[selected.row]; const long = Math.max(row.e[selected.i] - row.s[selected.i], 100); show(row.s[selected.i] - long, row.e[selected.i] + long); } },
    c: nextSame, m: () => sum(t0, t1), '[': () => setEnd(true), ']': () => setEnd(false),
    '/': () => $('search').focus(), pagedown: () => { scroll += height * 0.8; clamp(); }, pageup: () => { scroll -= height * 0.8; clamp(); },
    escape: () => { $('search').value = ''; search(''); sum(0, 0); select(null, false); detail.textContent = ready; },
  };
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const action = event.key.startsWith('Arrow') ? () => walk(event.key) : keys[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  });
  const steer = (event) => {
    if (event.type === 'pointermove' && !event.buttons) return;
    if (event.type === 'pointerdown') map.setPointerCapture(event.pointerId);
    const at = (event.offsetX / map.clientWidth) * span;
    const half = (t1 - t0) / 2;
    t0 = at - half;
    t1 = at + half;
    clamp();
  };
  map.addEventListener('pointerdown', steer);
  map.addEventListener('pointermove', steer);
  $('in').addEventListener('click', () => zoom(0.6));
  $('out').addEventListener('click', () => zoom(1 / 0.6));
  $('all').addEventListener('click', () => show(0, span));
  $('sum-view').addEventListener('click', () => sum(t0, t1));
  $('home').addEventListener('click', () => show(meta.home[0], meta.home[1]));
  $('search').addEventListener('input', (event) => search(event.target.value));
  $('search').addEventListener('keydown', (event) => { if (event.key === 'Enter') jump(!event.shiftKey); });
  $('next').addEventListener('click', () => jump(true));
  $('previous').addEventListener('click', () => jump(false));
  for (const button of document.querySelectorAll('.goto')) {
    button.addEventListener('click', () => {
      const [a, b, group] = meta.windows[Number(button.dataset.window)];
      const margin = Math.max((b - a) * 0.4, 5000);
      const first = lanes.find((lane) => lane.group === group);
      for (const lane of lanes) if (lane.group === group) lane.open = true;
      layout();
      if (first) scroll = many ? first.y - HEADING : 0;
      show(a - margin, b + margin);
      const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
      $('timeline').scrollIntoView({behavior: calm ? 'auto' : 'smooth', block: 'start'});
      canvas.focus({preventScroll: true});
    });
  }

  let ready = say('ready', {events: events.toLocaleString('en'), lanes: lanes.length});
  if (deep) ready += ` ${say('deep', {count: deep.toLocaleString('en'), limit: MAX_DEPTH})}.`;
  detail.textContent = ready;
  layout();
  retheme();
  show(meta.home[0], meta.home[1]);
  resize();
  draw();
  addEventListener('resize', resize);
  return {retheme, resize, draw};
}
