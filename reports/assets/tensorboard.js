// The page of the TensorBoard plugin: a list of the runs that have a diagnosis, and its report.
// The report is somebody else's file, so its frame has no origin and no access to TensorBoard.

const REFRESH_MS = 30000;

export async function render() {
  document.documentElement.lang = 'en';
  document.title = 'gpuprof';
  const style = document.createElement('style');
  style.textContent =
    'html,body{height:100%;margin:0}body{display:flex;flex-direction:column;' +
    'font:14px system-ui,sans-serif}header{padding:8px 12px}p{padding:12px}' +
    'iframe{flex:1;border:0;width:100%}';
  const header = document.createElement('header');
  const label = document.createElement('label');
  const select = document.createElement('select');
  label.append('Run ', select);
  header.append(label);
  const empty = document.createElement('p');
  empty.textContent =
    'No diagnosis was found below the log directory. Write one there: ' +
    'gpuprof report RUN --format tensorboard -o LOGDIR';
  const frame = document.createElement('iframe');
  frame.title = 'Diagnosis of the chosen run';
  frame.setAttribute('sandbox', 'allow-scripts allow-downloads allow-popups');
  document.head.append(style);
  document.body.append(header, empty, frame);

  let shown = null;
  const show = () => {
    if (select.value === shown) return;
    shown = select.value;
    frame.src = `./report?run=${encodeURIComponent(shown)}`;
  };
  const refresh = async () => {
    const answer = await fetch('./runs');
    const runs = answer.ok ? await answer.json() : [];
    const chosen = select.value;
    select.replaceChildren(...runs.map((run) => new Option(run, run)));
    if (runs.includes(chosen)) select.value = chosen;
    header.hidden = frame.hidden = runs.length === 0;
    header.style.display = frame.style.display = runs.length ? '' : 'none';
    empty.style.display = runs.length ? 'none' : '';
    if (runs.length) show();
  };
  select.addEventListener('change', show);
  await refresh();
  setInterval(() => refresh().catch(() => {}), REFRESH_MS);
}
