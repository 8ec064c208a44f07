// ---- Words and elements. Texts go in as text, never as markup.

function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function bytesText(bytes) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return bytes.toFixed(unit === 0 ? 0 : 2) + ' ' + units[unit];
}
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(2) + ' %' : '–';
const count = (number) => number.toLocaleString('en');
const mass = (value) => value === null ? 'not known' : value.toFixed(4);

/** A token's text where white space alone would not be seen. */
const shown = (text) => text === '' ? '▫' : /^\n+$/.test(text) ? text.replace(/\n/g, '⏎\n') : text;
const quoted = (text) => text === undefined ? 'the end' : '“' + text.replace(/\n/g, '⏎') + '”';

/** "0–3, 17, 40–44" */
function rangesText(positions) {
  const parts = [];
  for (let i = 0; i < positions.length;) {
    let end = i;
    while (end + 1 < positions.length && positions[end + 1] === positions[end] + 1) ++end;
    parts.push(end === i ? String(positions[i]) : positions[i] + '–' + positions[end]);
    i = end + 1;
  }
  return parts.join(', ');
}

const coverageClass = (mean) =>
    mean === null ? 'c0' : mean >= 0.99 ? 'c4' : mean >= 0.95 ? 'c3' : mean >= 0.9 ? 'c2' : 'c1';

/** A row of a table: texts, the last columns with numbers to the right. */
function tableRow(cells, kind) {
  const row = element('tr');
  for (const cell of cells) {
    const made = element(kind, cell.number ? 'number' : cell.name || '', cell.text);
    if (kind === 'th') made.scope = 'col';
    row.append(made);
  }
  return row;
}

// ---- The map: a row for each layer and KV head, a column for each bin of positions.

const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
/** A single token among many must still be seen. */
const strength = (share) => share <= 0 ? 0 : 0.18 + 0.82 * Math.pow(share, 0.6);
const roleNames = {D: 'dense', S: 'select', R: 'reuse', W: 'stream'};

class MapView {
  /** `told`: called with the words of the cell under the cursor. */
  constructor(panel, told) {
    this.canvas = panel.querySelector('.heat');
    this.plot = panel.querySelector('.plot');
    this.cross = panel.querySelector('.cross');
    this.labels = panel.querySelector('.labels');
    this.axis = panel.querySelector('.axis');
    this.told = told;
    this.run = null;
    this.step = null;
    this.cursor = null;  // {row, bin}
    this.canvas.addEventListener('pointermove', (event) => this.move(this.at(event)));
    this.canvas.addEventListener('pointerleave', () => this.move(null));
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.canvas.addEventListener('blur', () => this.move(null));
  }

  get rowHeight() { return this.run.rows > 300 ? 2 : this.run.rows > 64 ? 4 : 10; }
  /** Pixels above a row; layers stand apart by one. */
  top(row) { return row * this.rowHeight + Math.floor(row / this.run.header.model.kv_heads); }

  show(run, step) {
    this.run = run;
    this.step = step || null;
    this.draw();
    if (this.cursor !== null) this.move(this.cursor);
  }

  draw() {
    const {run, step, canvas} = this;
    if (run === null || run.header === null) return;
    const model = run.header.model, height = this.top(run.rows - 1) + this.rowHeight;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(this.plot.clientWidth * ratio));
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + 'px';
    canvas.setAttribute('aria-label', 'Map of positions read, ' + model.layers + ' layers of ' + model.kv_heads +
        ' KV heads; its table says the same');
    const context = canvas.getContext('2d'), ground = colour('--panel'), set = colour('--set'), all = colour('--all');
    const paint = (ink, part) => 'rgb(' + ground.map((value, i) => Math.round(value + (ink[i] - value) * part)).join(' ') + ')';
    context.fillStyle = paint(ground, 1);
    context.fillRect(0, 0, canvas.width, canvas.height);
    this.showLabels(height);
    this.showAxis();
    if (step === null) return;
    const shades = Array.from({length: 16}, (unused, digit) => paint(set, strength(digit / 15)));
    for (let row = 0; row < run.rows; ++row) {
      const y = Math.round(this.top(row) * ratio), rows = Math.round((this.top(row) + this.rowHeight) * ratio) - y;
      if (step.counts[row] === null) {
        context.fillStyle = paint(all, 1);
        context.fillRect(0, y, canvas.width, rows);
        continue;
      }
      const cells = step.cells[row];
      for (let bin = 0; bin < step.bins;) {
        let end = bin + 1;
        while (end < step.bins && cells[end] === cells[bin]) ++end;
        if (cells[bin] > 0) {
          const x = this.left(bin);
          context.fillStyle = shades[cells[bin]];
          context.fillRect(x, y, Math.max(1, this.left(end) - x), rows);
        }
        bin = end;
      }
    }
    context.fillStyle = 'rgb(' + colour('--low').join(' ') + ')';
    context.fillRect(Math.round(run.prompt / (step.position + 1) * canvas.width), 0, 1, canvas.height);
  }

  /** Pixel at which a bin begins; the last one may hold fewer tokens. */
  left(bin) {
    const tokens = Math.min(bin * this.step.width, this.step.position + 1);
    return Math.round(tokens / (this.step.position + 1) * this.canvas.width);
  }

  showLabels(height) {
    const model = this.run.header.model, band = this.rowHeight * model.kv_heads + 1, every = Math.ceil(13 / band);
    this.labels.style.height = height + 'px';
    this.labels.replaceChildren();
    for (let layer = 0; layer < model.layers; layer += every) {
      const label = element('span', '', layer === 0 ? 'layer 0' : String(layer));
      label.style.position = 'absolute';
      label.style.right = '0';
      label.style.top = layer * band - 2 + 'px';
      this.labels.append(label);
    }
  }

  showAxis() {
    this.axis.replaceChildren();
    const last = this.step === null ? this.run.prompt : this.step.position;
    for (let i = 0; i <= 4; ++i) {
      this.axis.append(element('span', '', (i === 0 ? 'position ' : '') + count(Math.round(last * i / 4))));
    }
  }

  at(event) {
    if (this.step === null) return null;
    const box = this.canvas.getBoundingClientRect();
    const position = Math.floor((event.clientX - box.left) / box.width * (this.step.position + 1));
    let row = 0;
    while (row + 1 < this.run.rows && this.top(row + 1) <= event.clientY - box.top) ++row;
    return {row, bin: Math.floor(Math.max(0, Math.min(this.step.position, position)) / this.step.width)};
  }

  key(event) {
    if (this.step === null) return;
    const from = this.cursor || {row: 0, bin: 0}, last = this.step.bins - 1;
    const moves = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -last],
                   End: [0, last], PageUp: [-this.run.header.model.kv_heads, 0],
                   PageDown: [this.run.header.model.kv_heads, 0]};
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [rows, bins] = this.cursor === null ? [0, 0] : moves[event.key];
    this.move({row: Math.max(0, Math.min(this.run.rows - 1, from.row + rows)),
               bin: Math.max(0, Math.min(last, from.bin + bins))});
  }

  move(cursor) {
    this.cursor = this.step === null ? null : cursor;
    this.cross.hidden = this.cursor === null;
    if (this.cursor === null) return this.told(null, '');
    const {step, run} = this, row = cursor.row, bin = Math.min(cursor.bin, step.bins - 1);
    const ratio = window.devicePixelRatio || 1;
    this.cross.style.left = this.left(bin) / ratio + 'px';
    this.cross.style.width = Math.max(2, (this.left(bin + 1) - this.left(bin)) / ratio) + 'px';
    this.cross.style.top = this.top(row) + 'px';
    this.cross.style.height = this.rowHeight + 'px';
    const first = bin * step.width, end = Math.min(first + step.width, step.position + 1);
    const heads = run.header.model.kv_heads, all = step.counts[row] === null;
    const cell = all ? 'read with everything else' : step.cells[row][bin] === 0 ? 'not read' :
        step.cells[row][bin] === 15 ? 'read' : 'some of them read';
    this.told(first, 'Layer ' + Math.floor(row / heads) + ', KV head ' + row % heads + ' (' +
        roleNames[step.roles[row]] + '): ' + (all ? 'every token' : count(step.counts[row]) + ' of ' +
        count(step.position + 1) + ' tokens') + '; mass ' + mass(step.coverage === null ? null : step.coverage[row]) +
        '. Position ' + count(first) + (end - first > 1 ? ' to ' + count(end - 1) : '') + ' ' +
        quoted(run.texts.slice(first, Math.min(end, first + 8)).join('')) + ': ' + cell + '.');
  }

  /** The chosen step in words, a row for each head: what the map shows, and exact where its sets are there. */
  table() {
    const {run, step} = this, table = element('table'), heads = run.header.model.kv_heads;
    const head = element('thead'), body = element('tbody');
    head.append(tableRow([{text: 'Layer', number: true}, {text: 'KV head', number: true}, {text: 'Role'},
                          {text: 'Tokens read', number: true}, {text: 'Share', number: true},
                          {text: 'Mass', number: true}, {text: 'Positions'}], 'th'));
    for (let row = 0; step !== null && row < run.rows; ++row) {
      const all = step.counts[row] === null, tokens = all ? step.position + 1 : step.counts[row];
      body.append(tableRow([{text: String(Math.floor(row / heads)), number: true},
                            {text: String(row % heads), number: true}, {text: roleNames[step.roles[row]]},
                            {text: count(tokens), number: true}, {text: percent(tokens, step.position + 1), number: true},
                            {text: step.coverage === null ? '–' : mass(step.coverage[row]), number: true},
                            {text: this.positions(row)}], 'td'));
    }
    table.append(head, body);
    return table;
  }

  positions(row) {
    const step = this.step;
    if (step.counts[row] === null) return '0–' + step.position;
    if (step.sets !== null) return rangesText(step.sets[row]);
    const touched = [];
    step.cells[row].forEach((digit, bin) => {
      if (digit > 0) touched.push(bin);
    });
    if (step.width === 1) return rangesText(touched);
    return touched.length + ' of ' + step.bins + ' parts of ' + step.width + ' tokens';
  }
}
