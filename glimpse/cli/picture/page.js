'use strict';
// The page of one trace. Everything is drawn from `trace`; texts go in as text, never as markup. What is shown is in
// `state`, and the chosen token is in the address (#token=12), so that a view can be kept.

const byId = (id) => document.getElementById(id);
const trace = JSON.parse(byId('trace').textContent);
const dense = -1;  // instead of a list: every token up to the step's position
const rowCount = trace.layers * trace.kvHeads;
const span = trace.promptTokens + trace.steps.length;  // positions that any step could read
const writtenCount = trace.steps.length + 1;           // the first token comes out of the prefill
const headHeight = 18;                                       // height of the row of all heads, and the gap after it
const gap = 2;                                         // between layers
const rowHeight = Math.max(trace.kvHeads < 3 ? 12 / trace.kvHeads : 4, rowCount > 400 ? 2 : 4);
const bandHeight = rowHeight * trace.kvHeads + gap;
const mapHeight = headHeight + trace.layers * bandHeight;
const contextTokens = 70;  // shown on each side of the cursor

const state = {token: Math.min(1, writtenCount - 1), first: 0, end: span, cursor: null, held: false};

// ---- The sets: runs of positions in Rice codes (glimpse/cli/position_list.h).

const listBytes = (() => {
  const text = atob(trace.lists), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
})();
const listStarts = [0];
for (const size of trace.sizes) listStarts.push(listStarts[listStarts.length - 1] + size);

/** Runs as [begin, end, begin, end, ...], ends exclusive. */
function runsOf(list) {
  let at = listStarts[list];
  let count = 0;
  for (let shift = 0; ; shift += 7) {
    const byte = listBytes[at++];
    count |= (byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  const gapLow = listBytes[at] >> 4, lengthLow = listBytes[at] & 15;
  let bit = (at + 1) * 8;
  const next = () => listBytes[bit >> 3] >> (7 - (bit++ & 7)) & 1;
  const rice = (low) => {
    let value = 0;
    while (next()) ++value;
    for (let i = 0; i < low; ++i) value = value << 1 | next();
    return value;
  };
  const runs = new Int32Array(2 * count);
  let end = 0;
  for (let i = 0; i < count; ++i) {
    runs[2 * i] = end + rice(gapLow);
    end = runs[2 * i + 1] = runs[2 * i] + 1 + rice(lengthLow);
  }
  return runs;
}

const tokensIn = (runs) => {
  let sum = 0;
  for (let i = 0; i < runs.length; i += 2) sum += runs[i + 1] - runs[i];
  return sum;
};

/** What the chosen step read: runs by row (null: everything), tokens by row, and readers by position. */
let reading = null;

function readingOf(step) {
  const known = new Map();
  const runs = [], tokens = [];
  const change = new Int32Array(span + 2);
  let sets = 0;
  for (const list of step.lists) {
    if (list === dense) {
      runs.push(null);
      tokens.push(step.position + 1);
      continue;
    }
    if (!known.has(list)) known.set(list, runsOf(list));
    const own = known.get(list);
    runs.push(own);
    tokens.push(tokensIn(own));
    ++sets;
    for (let i = 0; i < own.length; i += 2) {
      ++change[own[i]];
      --change[own[i + 1]];
    }
  }
  const readers = new Int32Array(span + 1);
  for (let position = 0, sum = 0; position <= step.position; ++position) readers[position] = sum += change[position];
  return {step, runs, tokens, readers, sets};
}

const reads = (row, position) => {
  const runs = reading.runs[row];
  if (position > reading.step.position) return false;
  if (runs === null) return true;
  let low = 0, high = runs.length / 2;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[2 * middle + 1] <= position) low = middle + 1; else high = middle;
  }
  return 2 * low < runs.length && runs[2 * low] <= position;
};

// ---- Words and numbers.

function bytesText(bytes) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return bytes.toFixed(unit === 0 ? 0 : 2) + ' ' + units[unit];
}
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(2) + ' %' : '–';
const count = (number) => number.toLocaleString('en');
const sumOf = (values) => values.reduce((a, b) => a + b, 0);

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A token's text where white space alone would not be seen. */
const shown = (text) => text === '' ? '▫' : /^\n+$/.test(text) ? text.replace(/\n/g, '⏎\n') : text;
const quoted = (position) => {
  const text = trace.tokens[position];
  return text === undefined ? 'the end' : '“' + text.replace(/\n/g, '⏎') + '”';
};

// ---- The answer and the chosen token.

const answerTokens = [];

function makeAnswer() {
  const budget = trace.budget ? ', budget ' + trace.budget : '';
  byId('about').textContent = trace.policy + budget + ' · ' + trace.model + ', ' + trace.layers + ' layers, ' +
      trace.heads + ' query and ' + trace.kvHeads + ' KV heads of ' + trace.headDim + ', cache ' + trace.kvType + ' · ' +
      count(trace.promptTokens) + ' tokens of prompt, ' + trace.steps.length + ' decode steps of ‘glimpse ' +
      trace.source + '’';
  document.title = 'glimpse: what ' + trace.policy + ' read';
  byId('answer-title').textContent = trace.source === 'run' ? 'Answer' : 'Text, as it was given';
  const tail = trace.tokens.slice(Math.max(0, trace.promptTokens - 40), trace.promptTokens).join('');
  byId('answer').append(element('span', 'before', (trace.promptTokens > 40 ? '… ' : '') + tail));
  for (let i = 0; i < writtenCount; ++i) {
    const text = trace.tokens[trace.promptTokens + i];
    const token = element('span', 'token', text === undefined ? '∎' : shown(text));
    token.dataset.token = i;
    token.addEventListener('click', () => choose(i));
    answerTokens.push(token);
    byId('answer').append(token);
  }
  byId('slider').max = writtenCount - 1;
  byId('slider').addEventListener('input', (event) => choose(Number(event.target.value)));
}

function choose(token) {
  const wanted = Math.max(0, Math.min(writtenCount - 1, token));
  answerTokens[state.token].classList.remove('now');
  state.token = wanted;
  const now = answerTokens[wanted];
  now.classList.add('now');
  const box = byId('answer');  // not scrollIntoView: the page stays where it is
  const over = now.offsetTop - box.offsetTop;
  if (over < box.scrollTop || over + now.offsetHeight > box.scrollTop + box.clientHeight) {
    box.scrollTop = over - box.clientHeight / 2;
  }
  byId('slider').value = wanted;
  try {
    history.replaceState(null, '', '#token=' + wanted);
  } catch (error) {
    // A page in a sandbox has no address to keep.
  }
  reading = wanted > 0 ? readingOf(trace.steps[wanted - 1]) : null;
  showFacts();
  showLayers();
  drawMap();
  showCursor();
}

function bytesRow(what, read, whole) {
  const share = element('div', 'share'), part = element('div');
  part.style.width = (whole > 0 ? Math.min(100, 100 * read / whole) : 0) + '%';
  share.append(part);
  return [element('span', '', what), share,
          element('span', '', bytesText(read) + ' of ' + bytesText(whole) + ' (' + percent(read, whole) + ')')];
}

function showFacts() {
  const written = trace.promptTokens + state.token;
  const chosen = byId('chosen');
  const bytes = byId('bytes');
  bytes.replaceChildren();
  chosen.replaceChildren(element('b', '', 'Token ' + (state.token + 1) + ' of ' + writtenCount + ': ' + quoted(written)));
  if (reading === null) {
    chosen.append(' came out of the prefill, which has no sets. Choose a later one.');
  } else {
    const step = reading.step;
    chosen.append(' at position ' + count(written) + '. To write it, the query of ' + quoted(step.position) + ' read ' +
        count(Math.round(sumOf(reading.tokens) / rowCount)) + ' of ' + count(step.position + 1) +
        ' tokens in each head on average. ');
    const known = (step.coverage || []).filter((value) => value !== null);
    chosen.append(known.length > 0 ?
        'Softmax mass captured: mean ' + (sumOf(known) / known.length).toFixed(4) + ', least ' +
            Math.min(...known).toFixed(4) + '.' :
        'Coverage of this step is not in the trace; ‘glimpse eval sets’ and ‘glimpse run --attn-audit’ compute it.');
    bytes.append(...bytesRow('This token', step.read, step.dense));
  }
  const all = (key) => sumOf(trace.steps.map((step) => step[key]));
  bytes.append(...bytesRow('All ' + trace.steps.length + ' steps', all('read'), all('dense')));
  const index = all('index');
  bytes.append(element('span', 'note', 'Bytes of K and V read from the cache, against what dense attention reads' +
      (index > 0 ? '; ' + bytesText(index) + ' of them are key indices.' : '.')));
}

// ---- The map: a row for each layer and KV head, a column for each pixel of positions.

const heat = byId('heat');
const plot = byId('plot');
const layerTop = (layer) => headHeight + layer * bandHeight;
const rowTop = (row) => layerTop(Math.floor(row / trace.kvHeads)) + row % trace.kvHeads * rowHeight;
const rowAt = (y) => {
  const layer = Math.floor((y - headHeight) / bandHeight);
  if (y < headHeight || layer >= trace.layers) return null;
  const head = Math.floor((y - layerTop(layer)) / rowHeight);
  return layer * trace.kvHeads + Math.min(head, trace.kvHeads - 1);
};

const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);

/** Adds to each pixel the share of it that the runs cover. */
function addRuns(shares, runs, weight) {
  const scale = shares.length / (state.end - state.first);
  for (let i = 0; i < runs.length; i += 2) {
    const from = Math.max(0, (runs[i] - state.first) * scale);
    const to = Math.min(shares.length, (runs[i + 1] - state.first) * scale);
    if (to <= from) continue;
    const first = Math.floor(from), last = Math.min(shares.length - 1, Math.floor(to));
    if (first === last) {
      shares[first] += (to - from) * weight;
      continue;
    }
    shares[first] += (first + 1 - from) * weight;
    for (let x = first + 1; x < last; ++x) shares[x] += weight;
    shares[last] += (to - last) * weight;
  }
}

/** A single token among many must still be seen. */
const strength = (share) => share <= 1e-6 ? 0 : 0.18 + 0.82 * Math.pow(Math.min(1, share), 0.6);

function drawMap() {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(plot.clientWidth * ratio)), height = Math.round(mapHeight * ratio);
  if (heat.width !== width || heat.height !== height) {
    heat.width = width;
    heat.height = height;
    heat.style.height = mapHeight + 'px';
  }
  const context = heat.getContext('2d');
  const ground = colour('--panel'), set = colour('--set'), all = colour('--all'), line = colour('--line');
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const mixed = (ink, part) => {
    const mix = (i) => Math.round(ground[i] + (ink[i] - ground[i]) * part);
    return (255 << 24 | mix(2) << 16 | mix(1) << 8 | mix(0)) >>> 0;
  };
  pixels.fill(mixed(ground, 1));
  const paint = (shares, ink, y, rows) => {
    const begin = Math.round(y * ratio), end = Math.max(begin + 1, Math.round((y + rows) * ratio));
    const colours = Uint32Array.from(shares, (share) => mixed(ink, strength(share)));
    for (let at = begin; at < end; ++at) pixels.set(colours, at * width);
  };
  if (reading !== null) {
    const together = new Float32Array(width);
    const known = new Map();
    for (let row = 0; row < rowCount; ++row) {
      const runs = reading.runs[row] || Int32Array.of(0, reading.step.position + 1);
      let shares = known.get(runs);
      if (shares === undefined) {
        shares = new Float32Array(width);
        addRuns(shares, runs, 1);
        known.set(runs, shares);
      }
      if (reading.runs[row] !== null) shares.forEach((share, x) => together[x] += share / reading.sets);
      paint(shares, reading.runs[row] === null ? all : set, rowTop(row), rowHeight);
    }
    paint(together, set, 0, headHeight - 6);
  }
  context.putImageData(image, 0, 0);
  context.fillStyle = 'rgb(' + line.join(' ') + ')';
  context.fillRect(0, Math.round((headHeight - 4) * ratio), width, 1);
  if (trace.promptTokens > state.first && trace.promptTokens < state.end) {
    const x = (trace.promptTokens - state.first) / (state.end - state.first) * width;
    context.fillStyle = 'rgb(' + colour('--low').join(' ') + ' / 0.5)';
    context.fillRect(Math.floor(x), 0, 1, height);
  }
  showAxis();
}

function showAxis() {
  const axis = byId('axis');
  axis.replaceChildren();
  const shownTokens = state.end - state.first;
  for (let i = 0; i <= 4; ++i) {
    const position = i < 4 ? state.first + Math.floor(shownTokens * i / 4) : state.end - 1;
    const tick = element('span', '', (i === 0 && plot.clientWidth > 480 ? 'position ' : '') + count(position));
    tick.style.left = 25 * i + '%';
    axis.append(tick);
  }
}

// ---- Beside the map: what each layer read, and the mass that it captured.

const layerRows = [], layerLabels = [];

function makeLayers() {
  const mass = element('span', '', 'mass captured ');
  mass.append(element('i'), element('b', '', ' least'));
  byId('heads').append(element('span', '', 'tokens read'), mass);
  byId('labels').style.height = byId('layers').style.height = mapHeight + 'px';
  const all = element('div', '', 'all sets');
  all.style.height = headHeight - 6 + 'px';
  byId('labels').append(all);
  const every = Math.ceil(11 / bandHeight);  // labels must not lie on each other
  for (let layer = 0; layer < trace.layers; ++layer) {
    const label = element('div', '', layer % every === 0 ? (layer === 0 ? 'layer 0' : String(layer)) : '');
    const row = element('div', 'layer');
    row.dataset.layer = layer;
    for (const made of [label, row]) {
      made.style.top = layerTop(layer) + 'px';
      made.style.height = bandHeight - gap + 'px';
    }
    layerLabels.push(label);
    layerRows.push(row);
    byId('labels').append(label);
    byId('layers').append(row);
  }
}

function measure(part, number, least) {
  const made = element('div', 'measure'), rail = element('div', 'rail'), fill = element('div', 'fill');
  fill.style.width = 100 * part + '%';
  rail.append(fill);
  if (least !== null) {
    const mark = element('div', 'least');
    mark.style.left = 'calc(' + 100 * least + '% - 1px)';
    rail.append(mark);
  }
  made.append(rail, element('span', 'number', number));
  return made;
}

function showLayers() {
  for (let layer = 0; layer < trace.layers; ++layer) {
    const row = layerRows[layer];
    row.replaceChildren();
    if (reading === null) continue;
    const first = layer * trace.kvHeads, end = first + trace.kvHeads;
    const share = sumOf(reading.tokens.slice(first, end)) / trace.kvHeads / (reading.step.position + 1);
    row.append(measure(share, percent(share, 1), null));
    const known = (reading.step.coverage || []).slice(first, end).filter((value) => value !== null);
    const mean = sumOf(known) / known.length;
    row.dataset.read = share.toFixed(6);
    row.dataset.coverage = known.length > 0 ? mean.toFixed(4) : '';
    const least = known.length > 0 ? Math.min(...known) : null;
    row.append(known.length > 0 ? measure(mean, mean.toFixed(3), least) : element('div', 'measure', '–'));
    row.title = 'layer ' + layer + ': ' + percent(share, 1) + ' of the tokens read' +
        (known.length > 0 ? '; mass captured: mean ' + mean.toFixed(4) + ', least ' + least.toFixed(4) : '');
  }
}

// ---- The text under the cursor.

const roleNames = {D: 'dense', S: 'select', R: 'reuse', W: 'stream'};

/** The place of the prompt that most sets read, beside its ends, which most methods always read. */
function mostRead() {
  if (reading === null || reading.sets === 0) return null;
  const ends = trace.promptTokens > 8 * contextTokens ? contextTokens : 0;
  let best = ends;
  for (let position = ends; position < trace.promptTokens - ends; ++position) {
    if (reading.readers[position] > reading.readers[best]) best = position;
  }
  return {position: best, row: null};
}

function showCursor() {
  const cross = byId('cross'), mark = byId('row'), where = byId('where'), context = byId('context');
  for (const near of document.querySelectorAll('.near')) near.classList.remove('near');
  const cursor = state.cursor || mostRead();
  const inside = cursor !== null && cursor.position >= state.first && cursor.position < state.end;
  cross.style.display = inside ? 'block' : 'none';
  mark.style.display = inside && cursor.row !== null ? 'block' : 'none';
  context.replaceChildren();
  if (cursor === null) {
    where.textContent = 'Move over the map: the text around the position is shown here.';
    return;
  }
  const {position, row} = cursor;
  if (inside) {
    cross.style.left = (position + 0.5 - state.first) / (state.end - state.first) * plot.clientWidth + 'px';
  }
  where.replaceChildren(state.cursor === null ? 'Where most sets of this step meet in the prompt: ' : '',
                        element('b', '', 'Position ' + count(position)),
                        position >= trace.promptTokens ? ' (answer)' : ' (prompt)');
  if (reading !== null) {
    where.append(', read by ' + reading.readers[position] + ' of ' + reading.sets + ' heads with sets');
    if (row !== null) {
      const layer = Math.floor(row / trace.kvHeads), role = roleNames[reading.step.roles[row]];
      where.append('. ', element('b', '', 'Layer ' + layer + ', KV head ' + row % trace.kvHeads), ' (' + role + ') read ' +
          count(reading.tokens[row]) + ' of ' + count(reading.step.position + 1) + ' tokens, ' +
          (reads(row, position) ? 'this one too' : 'not this one'));
      const coverage = reading.step.coverage === null ? null : reading.step.coverage[row];
      if (coverage !== null) where.append('; mass captured ' + coverage.toFixed(4));
      mark.style.top = rowTop(row) + 'px';
      mark.style.height = rowHeight + 'px';
      layerLabels[layer].classList.add('near');
      layerRows[layer].classList.add('near');
      if (layerLabels[layer].textContent === '') layerLabels[layer].title = String(layer);
    }
  }
  where.append(state.held ? '. Held: Esc lets go.' : '.');
  const first = Math.max(0, position - contextTokens);
  const end = Math.min(trace.tokens.length, position + contextTokens + 1);
  if (first > 0) context.append('… ');
  for (let at = first; at < end; ++at) {
    const token = element('span', '', trace.tokens[at].replace(/\n+/g, '⏎ ') || (at === position ? '▫' : ''));
    if (reading !== null) {
      const share = reading.sets > 0 && at <= reading.step.position ? reading.readers[at] / reading.sets : 0;
      if (share > 0) token.style.background = 'rgb(var(--set) / ' + (0.08 + 0.4 * share).toFixed(3) + ')';
      if (row !== null && reading.runs[row] !== null && reads(row, at)) token.classList.add('read');
    }
    if (at === position) token.classList.add('here');
    context.append(token);
  }
  if (end < trace.tokens.length) context.append(' …');
}

const positionAt = (x) => {
  const position = state.first + Math.floor(x / plot.clientWidth * (state.end - state.first));
  return Math.max(state.first, Math.min(state.end - 1, position));
};

function showPart(first, end) {
  state.first = first;
  state.end = end;
  byId('whole').hidden = first === 0 && end === span;
  drawMap();
  showCursor();
}

let drag = null;  // where the button went down, in pixels

function watchMap() {
  const place = (event) => {
    const box = heat.getBoundingClientRect();
    return {x: event.clientX - box.left, y: event.clientY - box.top};
  };
  plot.addEventListener('pointerdown', (event) => {
    drag = place(event).x;
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener('pointermove', (event) => {
    const {x, y} = place(event);
    if (drag !== null && Math.abs(x - drag) > 4) {
      const part = byId('part');
      part.style.display = 'block';
      part.style.left = Math.max(0, Math.min(x, drag)) + 'px';
      part.style.width = Math.min(plot.clientWidth, Math.max(x, drag)) - Math.max(0, Math.min(x, drag)) + 'px';
    }
    if (state.held) return;
    state.cursor = {position: positionAt(x), row: rowAt(y)};
    showCursor();
  });
  plot.addEventListener('pointerup', (event) => {
    const {x, y} = place(event);
    byId('part').style.display = 'none';
    if (drag !== null && Math.abs(x - drag) > 4) {
      const first = positionAt(Math.min(x, drag)), end = positionAt(Math.max(x, drag)) + 1;
      if (end - first >= 16) showPart(first, end);
    } else {
      state.held = true;
      state.cursor = {position: positionAt(x), row: rowAt(y)};
      showCursor();
    }
    drag = null;
  });
  plot.addEventListener('pointercancel', () => {
    drag = null;
    byId('part').style.display = 'none';
  });
  byId('whole').addEventListener('click', () => showPart(0, span));
}

// ---- Keys, and a page that changes its size or its colours.

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = {ArrowLeft: state.token - 1, ArrowRight: state.token + 1, Home: 0, End: writtenCount - 1};
  if (event.key in moves) {
    choose(moves[event.key]);
    event.preventDefault();
  } else if (event.key === 'Escape') {
    state.held = false;
    state.cursor = null;
    showCursor();
  }
});

function redraw() {
  drawMap();
  showCursor();
}

const tokenInAddress = () => {
  const found = /^#token=(\d+)$/.exec(location.hash);
  return found === null ? state.token : Number(found[1]);
};

makeAnswer();
makeLayers();
watchMap();
choose(tokenInAddress());
window.addEventListener('hashchange', () => choose(tokenInAddress()));
window.addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
document.body.dataset.ready = 'true';
