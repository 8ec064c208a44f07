'use strict';
// The page of one scoreboard. Everything is drawn from `board`; texts go in as text, never as markup.

const byId = (id) => document.getElementById(id);
const board = JSON.parse(byId('scoreboard').textContent);
const rows = board.rows.map((values) => Object.fromEntries(board.columns.map((name, i) => [name, values[i]])));
const ALL = 'all';

function make(tag, into, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  into.appendChild(node);
  return node;
}

const each = (list, key) => [...new Set(list.map((row) => row[key]))];
const percent = (share) => share === null ? '' : (100 * share).toFixed(1) + ' %';
const lengths = each(rows, 'length'), arms = each(rows, 'arm');
const plotLength = () => Number(byId('length').value);

function makeAbout() {
  const {settings, machine} = board;
  byId('about').textContent = `${board.model} (${settings.fingerprint}), ${settings.kv_type} cache; ${machine.cpu}, ` +
      `${settings.threads} threads; commit ${board.commit}, ${board.date}`;
  byId('command').textContent = board.command;
  const asked = Math.min(...rows.filter((row) => row.task !== ALL).map((row) => row.asked));
  const interrupted = settings.complete ? '' : ' The run was interrupted.';
  const taken = Object.entries(settings).filter(([name]) => name.includes(' at ')).map(([name, what]) => ` ${name}: ${what}.`);
  byId('few').textContent = `A cell has ${settings.examples} prompts, the least ${asked}.${interrupted}${taken.join('')}`;
  document.title = `glimpse: scoreboard of ${board.model}`;
}

/** Name, heading, text of a value; `number` columns sort by value, the largest first at first. */
const columns = [
  {name: 'task', title: 'task'},
  {name: 'length', title: 'length', number: true, text: String},
  {name: 'depth', title: 'depth', number: true, text: (value) => value === null ? '' : value + ' %'},
  {name: 'arm', title: 'method'},
  {name: 'score', title: 'answers', number: true, text: percent},
  {name: 'low', title: '95 %', number: true, text: (value, row) => `${(100 * row.low).toFixed(0)} to ${(100 * row.high).toFixed(0)}`},
  {name: 'right', title: 'right', number: true, text: (value, row) => `${row.right} of ${row.asked}`},
  {name: 'dense', title: 'dense', number: true, text: percent},
  {name: 'divergence', title: 'KL', number: true, text: (value) => value.toFixed(4)},
  {name: 'agreement', title: 'top-1', number: true, text: percent},
  {name: 'kept_ratio', title: 'read', number: true, text: percent},
  {name: 'bytes_per_token', title: 'MB a token', number: true, text: (value) => (value / 1e6).toFixed(2)},
  {name: 'ms', title: 'ms a token', number: true, text: (value) => value === null ? '' : value.toFixed(2)},
  {name: 'cache_bytes', title: 'cache MB', number: true, text: (value) => (value / 1e6).toFixed(1)},
];

/** A table whose column names are buttons that sort it. `shown` gives its rows. */
function sortable(table, names, shown) {
  const used = names.map((name) => columns.find((column) => column.name === name));
  let by = null, up = true;
  const head = make('tr', make('thead', table)), body = make('tbody', table);
  const cells = used.map((column) => {
    const cell = make('th', head, undefined, column.number ? 'number' : '');
    cell.setAttribute('aria-sort', 'none');
    make('button', cell, column.title).addEventListener('click', () => {
      up = by === column ? !up : !column.number;
      by = column;
      draw();
    });
    return cell;
  });
  function draw() {
    cells.forEach((cell, i) => cell.setAttribute('aria-sort', used[i] !== by ? 'none' : up ? 'ascending' : 'descending'));
    const list = shown().slice();
    if (by) {
      const least = (row) => row[by.name] === null ? Infinity : row[by.name];
      list.sort((a, b) => (up ? 1 : -1) * (by.number ? (least(a) - least(b)) || 0 : a[by.name].localeCompare(b[by.name])));
    }
    body.replaceChildren();
    for (const row of list) {
      const line = make('tr', body);
      for (const column of used) {
        make('td', line, column.text ? column.text(row[column.name], row) : row[column.name], column.number ? 'number' : '');
      }
    }
  }
  return draw;
}

/** A colour of the page, "25 90 170" in its style. */
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
const rgb = (name) => `rgb(${colourOf(name).join(' ')})`;

const overallAt = (length) => rows.filter((row) => row.task === ALL && row.length === length);

/** Points that no other one beats: none is as fast and better, or faster and as good. The fastest first. */
function frontOf(points) {
  const front = [];
  let best = -1;
  for (const point of points.slice().sort((a, b) => a.ms - b.ms || b.score - a.score)) {
    if (point.score <= best) continue;
    best = point.score;
    front.push(point);
  }
  return front;
}

let places = [];

function drawPlot() {
  const canvas = byId('plot'), context = canvas.getContext('2d');
  const points = overallAt(plotLength()).filter((row) => row.ms !== null);
  const box = {left: 56, right: canvas.width - 24, top: 20, bottom: canvas.height - 44};
  const most = Math.max(1e-9, ...points.map((row) => row.ms)) * 1.08;
  const x = (ms) => box.left + (box.right - box.left) * ms / most;
  const y = (score) => box.bottom - (box.bottom - box.top) * score;
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.font = '12px system-ui, sans-serif';
  context.lineWidth = 1;
  context.textBaseline = 'middle';
  for (let share = 0; share <= 1; share += 0.25) {
    context.strokeStyle = rgb('--line');
    context.beginPath();
    context.moveTo(box.left, y(share));
    context.lineTo(box.right, y(share));
    context.stroke();
    context.fillStyle = rgb('--soft');
    context.textAlign = 'right';
    context.fillText(100 * share + ' %', box.left - 8, y(share));
  }
  const step = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((size) => most / size <= 10) || most / 10;
  context.textAlign = 'center';
  for (let ms = 0; ms <= most; ms += step) context.fillText(String(+ms.toFixed(2)), x(ms), box.bottom + 14);
  context.fillText('ms a token', (box.left + box.right) / 2, box.bottom + 32);
  const front = frontOf(points);
  context.strokeStyle = rgb('--set');
  context.beginPath();
  front.forEach((row, i) => i === 0 ? context.moveTo(x(row.ms), y(row.score)) : context.lineTo(x(row.ms), y(row.score)));
  context.stroke();
  places = points.map((row) => ({row, x: x(row.ms), y: y(row.score)}));
  const labels = [];
  for (const {row, x: at, y: height} of places) {
    context.strokeStyle = rgb('--all');
    context.beginPath();
    context.moveTo(at, y(row.low));
    context.lineTo(at, y(row.high));
    context.stroke();
    context.fillStyle = front.includes(row) ? rgb('--set') : rgb('--low');
    context.beginPath();
    context.arc(at, height, 4, 0, 7);
    context.fill();
    const width = context.measureText(row.arm).width, left = at + 8 + width > canvas.width;
    const box1 = {from: left ? at - 8 - width : at + 8, to: left ? at - 8 : at + 8 + width, y: height};
    while (labels.some((other) => Math.abs(other.y - box1.y) < 13 && other.from < box1.to && box1.from < other.to)) box1.y += 13;
    labels.push(box1);
    context.fillStyle = rgb('--ink');
    context.textAlign = 'left';
    context.fillText(row.arm, box1.from, box1.y);
  }
  byId('front').textContent = points.length === 0 ? 'No answer was long enough to be timed.' :
      'Nothing is both faster and better than ' + front.map((row) => row.arm).join(', ') + '.';
}

function showPoint(event) {
  const canvas = byId('plot'), box = canvas.getBoundingClientRect();
  const x = (event.clientX - box.left) * canvas.width / box.width, y = (event.clientY - box.top) * canvas.height / box.height;
  const near = places.map((place) => ({place, far: Math.hypot(place.x - x, place.y - y)})).sort((a, b) => a.far - b.far)[0];
  if (!near || near.far > 24) return;
  const {row} = near.place;
  byId('where').textContent = `${row.arm}: ${percent(row.score)} at ${row.ms.toFixed(2)} ms a token, reads ${percent(row.kept_ratio)}`;
}

function drawHeat() {
  const needles = rows.filter((row) => row.depth !== null && row.arm === byId('arm').value);
  const at = each(needles, 'length').sort((a, b) => a - b);
  const table = byId('heat');
  table.replaceChildren();
  const head = make('tr', make('thead', table));
  make('th', head, 'depth');
  for (const length of at) make('th', head, String(length), 'number').scope = 'col';
  const body = make('tbody', table), cold = colourOf('--panel'), hot = colourOf('--set');
  for (const depth of each(needles, 'depth').sort((a, b) => a - b)) {
    const line = make('tr', body);
    make('th', line, depth + ' %').scope = 'row';
    for (const length of at) {
      const row = needles.find((one) => one.length === length && one.depth === depth);
      const cell = make('td', line, row ? percent(row.score) : '');
      if (!row) continue;
      const mixed = cold.map((from, i) => Math.round(from + (hot[i] - from) * row.score));
      cell.style.backgroundColor = `rgb(${mixed.join(' ')})`;
      cell.style.color = row.score > 0.5 ? rgb('--ground') : rgb('--ink');
      cell.title = `${row.right} of ${row.asked}`;
    }
  }
}

function choices(id, values, change) {
  for (const value of values) make('option', byId(id), String(value)).value = value;
  byId(id).addEventListener('change', change);
}

makeAbout();
const drawOverall = sortable(byId('overall'), ['arm', 'score', 'low', 'dense', 'divergence', 'agreement', 'kept_ratio', 'bytes_per_token', 'ms', 'cache_bytes'],
                             () => overallAt(plotLength()));
const drawTasks = sortable(byId('tasks'), columns.map((column) => column.name),
                           () => rows.filter((row) => row.task !== ALL && [row.task, ALL].includes(byId('task').value)));
choices('length', lengths, () => { drawPlot(); drawOverall(); });
choices('arm', arms, drawHeat);
choices('task', [ALL, ...each(rows, 'task').filter((task) => task !== ALL)], drawTasks);
byId('needle').hidden = !rows.some((row) => row.depth !== null);
const redraw = () => { drawPlot(); drawHeat(); };
redraw();
drawOverall();
drawTasks();
byId('plot').addEventListener('pointermove', showPoint);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
document.body.dataset.ready = 'true';
