// The timeline as a trace in Chrome's JSON format: to a file, or to Perfetto's own page. That page is
// opened and spoken to only when its button is clicked; until then, this page asks nobody for anything.

const PERFETTO = 'https://ui.perfetto.dev';
const PIECE = 1 << 20;    // characters of JSON that are held before they are compressed
const ASK_MS = 50;
const PATIENCE_MS = 120000;

function* traceJson(meta, lanes, titles) {
  const text = (value) => JSON.stringify(value);
  const us = (ns) => (ns / 1000).toFixed(3);
  const names = meta.names.map((name) => text(name[0]));
  const kinds = meta.names.map((name) => text(meta.words[`class.${meta.classes[name[1]]}`] || ''));
  const about = (pid, tid, what, args) => `{"ph":"M","pid":${pid},"tid":${tid},"name":"${what}","args":${text(args)}}`;
  yield '{"displayTimeUnit":"ms","traceEvents":[\n';
  yield about(0, 0, 'process_name', {name: document.title});
  let tid = 1;
  for (let g = 0; g < meta.groups.length; g++) {
    const pid = g + 1;
    yield `,\n${about(pid, 0, 'process_name', {name: meta.groups[g].label || document.title})}`;
    yield `,\n${about(pid, 0, 'process_sort_index', {sort_index: pid})}`;
    const marks = meta.windows.map((window) => window).filter((window) => window[2] === g).sort((a, b) => a[0] - b[0]);
    const free = []; // windows of findings may overlap, slices of a track may not
    for (const [a, b, , number] of marks) {
      let row = free.findIndex((until) => until <= a);
      if (row < 0) row = free.length;
      if (free[row] === undefined) yield `,\n${about(pid, 100000 + row, 'thread_name', {name: meta.words['perfetto.findings']})}`;
      free[row] = b;
      yield `,\n{"ph":"X","cat":"gpuprof","name":${text(`${number}. ${titles[number - 1] || ''}`)},"pid":${pid},"tid":${100000 + row},"ts":${us(a)},"dur":${us(b - a)}}`;
    }
    for (const lane of lanes) {
      if (lane.group !== g) continue;
      if (lane.kind === 'counter') {
        const row = lane.rows[0];
        const name = text(`${lane.label} ${lane.unit}`);
        for (let i = 0; i < row.m; i++) yield `,\n{"ph":"C","pid":${pid},"name":${name},"ts":${us(row.s[i])},"args":{"value":${+(row.v[i] * lane.top).toFixed(3)}}}`;
        continue;
      }
      // Rows of a thread nest and share a track; those of a stream only overlap.
      const shared = lane.kind === 'thread';
      for (let k = 0; k < lane.rows.length; k++) {
        if (!shared || k === 0) {
          tid++;
          yield `,\n${about(pid, tid, 'thread_name', {name: lane.label})},\n${about(pid, tid, 'thread_sort_index', {sort_index: tid})}`;
        }
        const row = lane.rows[k];
        for (let i = 0; i < row.m; i++) yield `,\n{"ph":"X","cat":${kinds[row.n[i]]},"name":${names[row.n[i]]},"pid":${pid},"tid":${tid},"ts":${us(row.s[i])},"dur":${us(row.e[i] - row.s[i])}}`;
      }
    }
  }
  yield '\n]}\n';
}

// Gzip-compressed bytes of the trace, made piece by piece: a million events are 150 MB of JSON.
async function packTrace(meta, lanes, titles) {
  const pieces = traceJson(meta, lanes, titles);
  const encoder = new TextEncoder();
  const source = new ReadableStream({
    pull(controller) {
      let piece = '';
      for (let next = pieces.next(); !next.done; next = pieces.next()) {
        piece += next.value;
        if (piece.length >= PIECE) { controller.enqueue(encoder.encode(piece)); return; }
      }
      if (piece) controller.enqueue(encoder.encode(piece));
      controller.close();
    },
  });
  return new Response(source.pipeThrough(new CompressionStream('gzip'))).arrayBuffer();
}

// Hands the trace over the way Perfetto documents it: ask until it answers, then send the bytes.
function handOver(target, buffer, title) {
  return new Promise((done, failed) => {
    const began = Date.now();
    const ask = setInterval(() => {
      if (target.closed || Date.now() - began > PATIENCE_MS) { stop(); failed(new Error('no answer')); return; }
      target.postMessage('PING', PERFETTO);
    }, ASK_MS);
    const hear = (event) => {
      if (event.data !== 'PONG' || event.origin !== PERFETTO) return;
      stop();
      target.postMessage({perfetto: {buffer, title, fileName: 'gpuprof.json.gz', keepApiOpen: false}}, PERFETTO);
      done();
    };
    const stop = () => { clearInterval(ask); removeEventListener('message', hear); };
    addEventListener('message', hear);
  });
}

function offerExports(meta, lanes) {
  const say = (key) => meta.words[`perfetto.${key}`];
  const state = document.getElementById('gp-handed');
  const titles = [...document.querySelectorAll('.findings .title')].map((title) => title.firstChild.textContent);
  const busy = (work) => async () => {
    state.textContent = say('packing');
    try { state.textContent = (await work()) || ''; } catch (error) { state.textContent = `${say('failed')} (${error.message})`; }
  };
  document.getElementById('gp-save').addEventListener('click', busy(async () => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([await packTrace(meta, lanes, titles)], {type: 'application/gzip'}));
    link.download = 'gpuprof-trace.json.gz';
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    return say('saved');
  }));
  const open = document.getElementById('gp-perfetto');
  open.hidden = window.top !== window; // a frame without an origin of its own can't speak to it
  open.addEventListener('click', busy(async () => {
    const target = window.open(PERFETTO); // inside the click, or it is taken for an advertisement
    if (!target) throw new Error(say('blocked'));
    await handOver(target, await packTrace(meta, lanes, titles), document.title);
    return say('sent');
  }));
}
