'use strict';
// The page of one profile. Everything is drawn from `profile`; texts go in as text, never as markup.

const byId = (id) => document.getElementById(id);
const profile = JSON.parse(byId('profile').textContent);

function make(tag, into, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  into.appendChild(node);
  return node;
}

/** Methods that named the layer, in the order of the profile. */
const choosersOf = (layer) => Object.keys(profile.chosen).filter((method) => profile.chosen[method].includes(layer));

function makeAbout() {
  byId('about').textContent = `${profile.model}: ${profile.layers} layers, ${profile.heads} query and ` +
      `${profile.kvHeads} KV heads of ${profile.headDim}` +
      (profile.fingerprint === null ? '' : `, model file ${profile.fingerprint}`);
  document.title = `glimpse: profile of ${profile.model}`;
}

function makeChosen() {
  const words = {kascade: 'anchors', tidal: 'selects again', lessismore: 'selects again', omnikv: 'filters'};
  const table = byId('chosen');
  for (const [method, layers] of Object.entries(profile.chosen)) {
    const row = make('tr', table);
    for (const text of [method, words[method], `layer${layers.length === 1 ? '' : 's'} ${layers.join(', ')}`]) {
      make('td', row, text);
    }
  }
  if (!table.rows.length) make('td', make('tr', table), 'none is named');
  let moved = 0;
  profile.headMap.forEach((from, i) => moved += from === i % profile.kvHeads ? 0 : 1);
  if (profile.headMap.length) {
    byId('moved').textContent =
        `kascade: ${moved} of ${profile.headMap.length} KV heads read the set of another head of their anchor`;
  }
}

/** A colour of the page, "25 90 170" in its style. */
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);

function drawMap(map) {
  const {canvas, cell, columns, values} = map, context = canvas.getContext('2d');
  const cold = colourOf('--panel'), hot = colourOf('--set');
  values.forEach((value, i) => {
    const [r, g, b] = cold.map((from, at) => Math.round(from + (hot[at] - from) * value));
    context.fillStyle = `rgb(${r} ${g} ${b})`;
    context.fillRect(i % columns * cell.width, Math.floor(i / columns) * cell.height, cell.width, cell.height);
  });
}

function makeMap({title, head, values}) {
  const columns = values.length / profile.layers;
  const cell = {width: columns > 128 ? 4 : columns > 48 ? 8 : 16, height: profile.layers > 128 ? 4 : 12};
  const section = make('section', byId('maps'));
  const bar = make('div', section, undefined, 'bar');
  make('h2', bar, title);
  make('p', bar, `A row for each layer, a column for each ${head}; the stronger its colour, the nearer to 1.`, 'hint');
  const grid = make('div', section, undefined, 'map');
  const labels = make('div', grid, undefined, 'labels'), plot = make('div', grid, undefined, 'plot');
  const marks = make('div', grid, undefined, 'marks');
  const canvas = make('canvas', plot);
  canvas.width = columns * cell.width;
  canvas.height = profile.layers * cell.height;
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', `${title}, one row for each layer, one column for each ${head}`);
  for (const side of [labels, marks]) side.style.paddingTop = '1px';  // the canvas's border
  for (let layer = 0; layer < profile.layers; ++layer) {
    const every = cell.height < 12 ? 8 : 1;
    const label = make('div', labels, layer % every ? '' : String(layer));
    const mark = make('div', marks, choosersOf(layer).join(', '));
    for (const part of [label, mark]) part.style.height = cell.height + 'px';
  }
  const where = make('p', section, '', 'where');
  const rest = () => {
    const most = values.reduce((best, value, i) => value > values[best] ? i : best, 0);
    where.textContent = `Largest: ${words(most)}`;
  };
  const words = (i) => `layer ${Math.floor(i / columns)}, ${head} ${i % columns}: ${values[i].toFixed(3)}`;
  canvas.addEventListener('pointermove', (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - canvas.clientLeft) / cell.width);
    const layer = Math.floor((event.clientY - box.top - canvas.clientTop) / cell.height);
    const inside = column >= 0 && column < columns && layer >= 0 && layer < profile.layers;
    if (inside) where.textContent = words(layer * columns + column).replace('layer', 'Layer');
  });
  canvas.addEventListener('pointerleave', rest);
  rest();
  return {canvas, cell, columns, values};
}

function makeKept() {
  byId('kept-section').hidden = profile.kept.length === 0;
  const table = byId('kept'), titles = make('tr', table);
  const names = ['method', 'budget', 'task', 'answers', 'dense', 'divergence', 'coverage', 'asked'];
  names.forEach((name, i) => make('th', titles, name, i < 3 ? '' : 'number'));
  for (const [method, budget, task, answers, dense, divergence, coverage, asked] of profile.kept) {
    const row = make('tr', table);
    for (const text of [method, budget, task]) make('td', row, text);
    const share = make('td', row, '', 'number');
    make('span', share, undefined, 'bar-of-share').style.width = Math.round(80 * answers) + 'px';
    make('span', share, (100 * answers).toFixed(1) + ' %');
    for (const text of [(100 * dense).toFixed(1) + ' %', divergence.toFixed(4), coverage.toFixed(4), asked]) {
      make('td', row, text, 'number');
    }
  }
}

/** A point for each number of anchors, from 0 to 1. */
function makeObjective() {
  const values = profile.objective, anchors = (profile.chosen.kascade ?? []).length;
  byId('objective-section').hidden = values.length === 0;
  if (!values.length) return;
  const left = 34, top = 8, step = values.length > 48 ? 8 : 16, height = 120, width = left + step * (values.length + 1);
  const svg = byId('objective');
  const part = (tag, into, attributes, text) => {
    const node = document.createElementNS(svg.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return into.appendChild(node);
  };
  const across = (count) => left + step * count, up = (value) => top + height * (1 - value);
  svg.setAttribute('width', width);
  svg.setAttribute('height', top + height + 24);
  svg.setAttribute('aria-label', `Share that 1 to ${values.length} anchors keep, from ${values[0].toFixed(3)} to ` +
      values.at(-1).toFixed(3));
  for (const value of [0, 0.5, 1]) {
    part('path', svg, {class: 'grid', d: `M${left} ${up(value)}H${width}`});
    part('text', svg, {x: left - 6, y: up(value) + 4, 'text-anchor': 'end'}, String(value));
  }
  part('path', svg, {class: 'line', d: 'M' + values.map((value, i) => `${across(i + 1)} ${up(value)}`).join('L')});
  const where = byId('objective-where');
  const say = (i) => where.textContent = `${i + 1} anchor${i ? 's' : ''}: ${values[i].toFixed(3)}`;
  values.forEach((value, i) => {
    const chosen = i + 1 === anchors;
    const dot = part('circle', svg, {cx: across(i + 1), cy: up(value), r: chosen ? 5 : 3, class: chosen ? 'chosen' : ''});
    dot.addEventListener('pointerenter', () => say(i));
    if (i === 0 || (i + 1) % 5 === 0) {
      part('text', svg, {x: across(i + 1), y: top + height + 18, 'text-anchor': 'middle'}, String(i + 1));
    }
  });
  say(Math.min(Math.max(anchors, 1), values.length) - 1);
}

function makeSpeed() {
  const speed = profile.speed;
  byId('speed-section').hidden = speed === null;
  if (speed === null) return;
  byId('machine').textContent = `Milliseconds on ${speed.processor}, ${speed.threads} ` +
      `thread${speed.threads === 1 ? '' : 's'}, ${speed.kvType} cache: a fixed part, a part for each 1,000 tokens of ` +
      `context, and both at the ${speed.tokens} tokens that answers were measured in.`;
  const table = byId('speed'), titles = make('tr', table);
  ['method', 'budget', 'fixed', 'per 1,000', `at ${speed.tokens}`].forEach(
      (name, i) => make('th', titles, name, i < 2 ? '' : 'number'));
  const most = Math.max(...speed.rows.map((row) => row[4]), 1e-9);
  for (const [method, budget, fixed, slope, at] of speed.rows) {
    const row = make('tr', table);
    for (const text of [method, budget]) make('td', row, text);
    for (const text of [fixed.toFixed(2), slope.toFixed(3)]) make('td', row, text, 'number');
    const total = make('td', row, '', 'number');
    make('span', total, undefined, 'bar-of-share').style.width = Math.round(80 * at / most) + 'px';
    make('span', total, at.toFixed(2));
  }
}

makeAbout();
makeChosen();
makeObjective();
makeKept();
makeSpeed();
const maps = profile.maps.map(makeMap);
const redraw = () => maps.forEach(drawMap);
redraw();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
document.body.dataset.ready = 'true';
