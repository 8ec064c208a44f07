// ---- The form, the server, and pages that were saved.

const byId = (id) => document.getElementById(id);
let panels = [];
let props = null;      // GET /props
let talks = [];        // messages of each panel's conversation
let running = null;    // AbortController of what is being asked
const mostSets = 1e7;  // positions that a saved page holds, some 2 bytes each; later steps have their bins

function say(text, wrong) {
  byId('status').textContent = text;
  byId('status').classList.toggle('wrong', Boolean(wrong));
}

const headers = () => {
  const key = byId('key').value;
  return key === '' ? {} : {Authorization: 'Bearer ' + key};
};

/** An answer of the server, or its error as one to throw. */
async function ask(path, options) {
  const response = await fetch(path, {...options, headers: {...headers(), ...(options || {}).headers}});
  if (response.ok) return response;
  let message = response.status + ' ' + response.statusText;
  try {
    message = (await response.json()).error.message;
  } catch (error) {
    // No body of ours: the status says what there is to say.
  }
  if (response.status === 401) props = null;  // asked for again with the next key
  throw new Error(message);
}

async function loadProps() {
  props = await (await ask('/props')).json();
  byId('about').textContent = props.model_alias + ' · context of ' +
      count(props.default_generation_settings.n_ctx) + ' tokens';
  for (const side of ['a', 'b']) {
    const select = byId('policy-' + side), before = select.value;
    select.replaceChildren();
    const standard = props.attention.policy, policies = props.attention.policies;
    const known = policies.some(({name}) => name === standard);
    for (const {name, help} of known ? policies : [{name: standard, help: 'the server’s own'}, ...policies]) {
      const option = element('option', '', name);
      option.value = name;
      option.title = help;
      select.append(option);
    }
    select.value = before || (side === 'a' ? standard : 'full');
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  }
}

// ---- One answer, watched.

function bodyOf(side, messages) {
  const attention = {policy: byId('policy-' + side).value, watch: true};
  const budget = byId('budget-' + side).value.trim(), audit = Number(byId('audit').value);
  if (budget !== '') attention.budget = /^\d+$/.test(budget) ? Number(budget) : budget;
  if (audit > 0 && attention.policy !== 'full') attention.audit = audit;
  const body = {stream: true, temperature: Number(byId('temperature').value), max_tokens: Number(byId('tokens').value),
                attention};
  if (props.chat_template !== '') return {path: '/v1/chat/completions', body: {...body, messages}};
  return {path: '/v1/completions', body: {...body, prompt: messages.map((each) => each.content).join('\n')}};
}

async function answer(panel, side, messages, signal) {
  const {path, body} = bodyOf(side, messages);
  const response = await ask(path, {method: 'POST', signal, body: JSON.stringify(body),
                                    headers: {'Content-Type': 'application/json'}});
  let watching = null, text = '';
  for await (const event of eventTexts(response)) {
    if (event === '[DONE]') break;
    const json = JSON.parse(event);
    if (json.error) throw new Error(json.error.message);
    if (watching === null) {
      panel.id = json.id;
      watching = watch(panel, signal);
      watching.catch(() => {});  // thrown below
    }
    const choice = json.choices[0];
    if (choice !== undefined) text += (choice.delta ? choice.delta.content : choice.text) || '';
  }
  await watching;
  return text;
}

async function watch(panel, signal) {
  // As many bins as the map has pixels to show them.
  const bins = Math.max(128, Math.min(1024, 128 * Math.floor(panel.map.plot.clientWidth / 128)));
  const response = await ask('/v1/requests/' + panel.id + '/events?bins=' + bins, {signal});
  for await (const event of eventTexts(response)) {
    if (event === '[DONE]') break;
    const json = JSON.parse(event);
    if (json.error) throw new Error(json.error.message);
    panel.run.add(json);
    panel.changed();
  }
  panel.follows = false;
  panel.changed();
  showSums();
}

const fetchSets = (panel) => async (number) => {
  const step = await (await ask('/v1/requests/' + panel.id + '/steps/' + number)).json();
  return step.heads.map((head) => head.tokens);
};

function addPanel(name, run) {
  const panel = new Panel(name, run, (number) => panel.id === undefined ? Promise.resolve(null) : fetchSets(panel)(number));
  panels.push(panel);
  byId('panels').append(panel.element);
  return panel;
}

function clearPanels() {
  for (const panel of panels) panel.pause();
  panels = [];
  byId('panels').replaceChildren();
  byId('sums').hidden = true;
}

async function send() {
  const two = byId('two').checked, question = byId('question').value.trim(), text = byId('document').value.trim();
  if (question === '' && text === '') return say('Give a document or a question.', true);
  if (props === null) await loadProps();
  const sides = two ? ['a', 'b'] : ['a'];
  if (talks.length !== sides.length) talks = sides.map(() => []);
  clearPanels();
  byId('panels').classList.toggle('two', two);
  running = new AbortController();
  setRunning(true);
  say('The answer is being made …');
  const done = await Promise.allSettled(sides.map(async (side, i) => {
    const panel = addPanel(two ? 'Method ' + side.toUpperCase() : 'Answer', new Run());
    const content = talks[i].length === 0 && text !== '' ? text + (question === '' ? '' : '\n\n' + question) : question;
    const messages = [...talks[i], {role: 'user', content}];
    const said = await answer(panel, side, messages, running.signal);
    talks[i] = [...messages, {role: 'assistant', content: said}];
  }));
  setRunning(false);
  const failed = done.find((each) => each.status === 'rejected');
  const stopped = running.signal.aborted;
  if (stopped) say('Stopped.');
  else if (failed) say(String(failed.reason.message), true);
  else say('Done. The next question goes on with this conversation.');
  for (const panel of panels) {
    panel.follows = false;
    panel.changed();
  }
  showSums();
}

/** A request of another client, watched by its id: /#request=ID. */
async function showOther() {
  const found = /^#request=([\w-]+)$/.exec(location.hash);
  if (found === null || running !== null && !running.signal.aborted && byId('send').disabled) return;
  clearPanels();
  running = new AbortController();
  const panel = addPanel('Request ' + found[1], new Run());
  panel.id = found[1];
  setRunning(true);
  say('Watching ' + panel.id + ' …');
  try {
    await watch(panel, running.signal);
    say('The request has ended.');
  } finally {
    setRunning(false);
  }
}

function setRunning(is) {
  byId('send').disabled = is;
  byId('stop').disabled = !is;
  byId('fresh').disabled = is || talks.length === 0;
  byId('save').disabled = is || !panels.some((panel) => panel.run.header !== null);
}

// ---- Two methods side by side.

function showSums() {
  const shown = panels.filter((panel) => panel.run.header !== null);
  byId('sums').hidden = shown.length < 2;
  if (shown.length < 2) return;
  const [a, b] = shown.map((panel) => panel.run.texts.slice(panel.run.prompt));
  let same = 0;
  while (same < Math.min(a.length, b.length) && a[same] === b[same]) ++same;
  const equal = same === a.length && same === b.length;
  byId('sums').querySelector('tbody').replaceChildren(...shown.map((panel, i) => {
    const run = panel.run, sums = run.sums(), never = run.neverShare();
    return tableRow([{text: panel.find('.title').textContent || panel.name}, {text: String(run.written), number: true},
                     {text: bytesText(sums.read), number: true}, {text: bytesText(sums.dense), number: true},
                     {text: percent(sums.read, sums.dense), number: true}, {text: mass(sums.mean), number: true},
                     {text: never === null ? '–' : percent(never, 1), number: true},
                     {text: i === 0 ? '–' : equal ? 'the same' : 'differs from token ' + (same + 1) + ' on'}], 'td');
  }));
}

// ---- A page that needs nothing else: this one with its style, its script and what it was told inside.

/** JSON whose texts cannot end the script element that holds it. */
const scriptSafe = (data) => JSON.stringify(data).replace(/</g, '\\u003c');

async function savedPage() {
  const part = async (path) => (await ask(path)).text();
  const [page, style, script] = await Promise.all(['/', '/microscope.css', '/microscope.js'].map(part));
  let room = mostSets;
  for (const panel of panels) {
    for (const step of panel.run.known()) {  // exact sets, of steps that the server still has
      if (step.sets !== null || step.width === 1 || room < 0) continue;
      const sets = await fetchSets(panel)(step.number).catch(() => null);
      if (sets === null) continue;
      const event = packedSets(step.number, sets);
      room -= sumOf(event.lists.map((list) => list.length));
      panel.run.add(event);
    }
  }
  const data = {runs: panels.map((panel) => ({name: panel.name, events: panel.run.events}))};
  const tag = (name, text, more) => '<' + name + (more || '') + '>' + text + '</' + name + '>';
  const policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'; ' +
      'script-src \'unsafe-inline\'">';
  const replaced = (text, old, made) => {
    if (!text.includes(old)) throw new Error('the page has no ' + old);
    return text.replace(old, () => made);
  };
  let made = replaced(page, '<link rel="icon" href="data:,">\n', '');
  made = replaced(made, '<meta charset="utf-8">', '<meta charset="utf-8">\n' + policy);
  made = replaced(made, '<link rel="stylesheet" href="/microscope.css">', tag('style', style));
  return replaced(made, tag('script', '', ' src="/microscope.js" defer'),
                  tag('script', scriptSafe(data), ' id="record" type="application/json"') + '\n' + tag('script', script));
}

async function save() {
  say('Reading the sets of each step …');
  const link = element('a');
  link.href = URL.createObjectURL(new Blob([await savedPage()], {type: 'text/html'}));
  link.download = 'microscope.html';
  link.click();
  URL.revokeObjectURL(link.href);
  say('Saved as microscope.html.');
}

// ---- Begin.

const guarded = (work) => () => work().catch((error) => {
  setRunning(false);
  say(running !== null && running.signal.aborted ? 'Stopped.' : error.message, true);
});

function openRecord(record) {
  byId('ask').hidden = true;
  byId('about').textContent = 'A saved answer.';
  for (const {name, events} of record.runs) {
    const run = new Run();
    for (const event of events) run.add(event);
    addPanel(name, run).follows = false;
  }
  byId('panels').classList.toggle('two', panels.length > 1);
  for (const panel of panels) {
    panel.token = Math.min(1, panel.run.written - 1);
    panel.draw();
  }
  showSums();
}

function begin() {
  byId('ask').addEventListener('submit', (event) => {
    event.preventDefault();
    guarded(send)();
  });
  byId('stop').addEventListener('click', () => running.abort());
  byId('save').addEventListener('click', guarded(save));
  byId('fresh').addEventListener('click', () => {
    talks = [];
    clearPanels();
    setRunning(false);
    say('');
  });
  byId('two').addEventListener('change', () => {
    for (const id of ['policy-b', 'budget-b']) byId(id).disabled = !byId('two').checked;
  });
  byId('file').addEventListener('change', guarded(async () => {
    const file = byId('file').files[0];
    if (file !== undefined) byId('document').value = await file.text();
  }));
  const enter = guarded(async () => {
    await loadProps();
    await showOther();
  });
  byId('key').addEventListener('change', enter);
  window.addEventListener('hashchange', guarded(showOther));
  enter();
}

const record = byId('record');
if (record === null) begin();
else openRecord(JSON.parse(record.textContent));
const redraw = () => {
  for (const panel of panels) panel.changed();
};
window.addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
document.body.dataset.ready = 'true';
