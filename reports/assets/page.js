// The page around the timeline: theme, printing, and the switch from the static strip to the canvas.

let viewer = null;

async function start() {
  const data = document.getElementById('gp-events');
  if (!data) return;
  if (typeof DecompressionStream === 'undefined') {
    document.getElementById('gp-unsupported').hidden = false;
    return;
  }
  const meta = JSON.parse(document.getElementById('gp-meta').textContent);
  const bytes = await inflate(data.textContent);
  data.textContent = '';
  const {lanes, events, deep} = decode(bytes, meta);
  document.getElementById('gp-timeline').hidden = false;
  document.getElementById('gp-intro').hidden = false;
  document.getElementById('gp-static').hidden = true;
  for (const button of document.querySelectorAll('.goto')) button.hidden = false;
  const used = new Set(meta.names.map((name) => meta.classes[name[1]]));
  for (const item of document.querySelectorAll('.idle-key')) item.hidden = !used.has(item.dataset.class);
  viewer = openTimeline(meta, lanes, events, deep);
  offerExports(meta, lanes);
}

const root = document.documentElement;
const dark = matchMedia('(prefers-color-scheme: dark)');
const retheme = () => viewer && viewer.retheme();
const toggle = document.getElementById('gp-theme');
toggle.hidden = false;
toggle.addEventListener('click', () => {
  const isDark = root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches;
  root.dataset.theme = isDark ? 'light' : 'dark';
  retheme();
});
dark.addEventListener('change', retheme);

// Paper is white and shows everything: light theme, everything that folds open.
let before = null;
addEventListener('beforeprint', () => {
  const closed = [...document.querySelectorAll('details:not([open]):not(.name)')];
  before = {theme: root.dataset.theme, closed};
  for (const item of closed) item.open = true;
  root.dataset.theme = 'light';
  if (viewer) { viewer.retheme(); viewer.draw(); } // now: no frame comes before the paper
});
addEventListener('afterprint', () => {
  if (!before) return;
  for (const item of before.closed) item.open = false;
  if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
  if (viewer) { viewer.retheme(); viewer.resize(); }
});

// The findings are read first: they are painted before the timeline is unpacked. A page that nobody
// sees yet is never painted, so this waits no longer than it takes to notice.
const painted = new Promise((done) => {
  requestAnimationFrame(() => setTimeout(done));
  setTimeout(done, 200);
});

painted.then(start).then(
  () => { root.dataset.timeline = viewer ? 'ready' : 'none'; performance.mark('gp-ready'); },
  (error) => {
    root.dataset.timeline = 'failed';
    document.getElementById('gp-timeline').hidden = true;
    document.getElementById('gp-static').hidden = false;
    const note = document.getElementById('gp-unsupported');
    note.textContent = `${note.textContent} (${error.message})`;
    note.hidden = false;
  },
);
