'use strict';
// What a viewer is told of a request (docs/microscope.md has the events), put together. No part of the document is
// touched here.

/** The data of server-sent events, one text each. */
async function* eventTexts(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    held += value;
    for (let end = held.indexOf('\n\n'); end >= 0; end = held.indexOf('\n\n')) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      if (event.startsWith('data: ')) yield event.slice(6);
    }
  }
}

class Run {
  constructor() {
    this.events = [];  // as they came: what a saved page holds
    this.header = null;
    this.texts = [];   // by position
    this.prompt = 0;   // tokens
    this.steps = [];   // by number; undefined: lost
    this.lost = 0;
    this.end = null;
    this.cells = [];   // [row] digits of the last step
    this.width = 1;    // tokens of a bin
    this.total = [];   // [bin] heads that read a token of it from a set, all steps together
    this.setCount = 0;  // sets of all steps
  }

  get rows() { return this.header ? this.header.model.layers * this.header.model.kv_heads : 0; }
  /** Tokens of the answer that are known. */
  get written() { return Math.max(0, this.texts.length - this.prompt); }
  /** The step that wrote a token of the answer; none for the first one, which comes out of the prefill. */
  stepOf(token) { return token > 0 ? this.steps[token - 1] : undefined; }
  known() { return this.steps.filter((step) => step !== undefined); }

  add(event) {
    this.events.push(event);
    if (event.kind === 'header') {
      this.header = event;
      this.prompt = event.prompt_tokens;
    } else if (event.kind === 'prompt') {
      event.texts.forEach((text, i) => this.texts[event.position + i] = text);
    } else if (event.kind === 'token') {
      this.texts[event.position] = event.text;
    } else if (event.kind === 'lost') {
      this.lost += event.steps;
    } else if (event.kind === 'sets') {
      const step = this.steps[event.step];
      if (step !== undefined) step.sets = unpackedSets(event);
    } else if (event.kind === 'end') {
      this.end = event;
    } else if (event.kind === 'step') {
      this.addStep(event);
    }
  }

  addStep(event) {
    const bins = Math.ceil((event.position + 1) / event.width);
    if (event.whole) {
      this.widen(event.width);
      this.cells = event.read.map(() => new Uint8Array(bins));
    }
    this.cells = this.cells.map((row) => {
      if (row.length === bins) return row;  // the step before has it, too: copied where it changes
      const longer = new Uint8Array(bins);
      longer.set(row);
      return longer;
    });
    for (const [row, first, digits] of event.rows) {
      if (digits === undefined) {
        this.cells[row] = this.cells[first];  // the same set as that row's
        continue;
      }
      const own = this.cells[row].slice();
      for (let i = 0; i < digits.length; ++i) own[first + i] = parseInt(digits[i], 16);
      this.cells[row] = own;
    }
    const readers = new Float32Array(bins);
    let sets = 0, reads = 0;
    event.read.forEach((count, row) => {
      if (count === null) return;
      ++sets;
      reads += count;
      const own = this.cells[row];
      for (let bin = 0; bin < bins; ++bin) readers[bin] += own[bin] / 15;
    });
    while (this.total.length < bins) this.total.push(0);
    for (let bin = 0; bin < bins; ++bin) this.total[bin] += readers[bin];
    this.setCount += sets;
    this.steps[event.step] = {
      number: event.step, position: event.position, read: event.bytes_read, index: event.index_bytes,
      dense: event.dense_bytes, mean: event.coverage_mean, least: event.coverage_min, coverage: event.coverage,
      roles: event.roles, counts: event.read, width: event.width, bins, cells: this.cells, readers, setCount: sets,
      reads, sets: null,
    };
  }

  /** Bins grow by doubling: the one that holds two has their mean. */
  widen(width) {
    for (; this.width < width; this.width *= 2) {
      const half = [];
      for (let i = 0; i < this.total.length; i += 2) half.push((this.total[i] + (this.total[i + 1] || 0)) / 2);
      this.total = half;
    }
  }

  /** Heads that read a position from a set in a step: exact where its sets are there or a bin is one token. */
  readersAt(step) {
    const readers = new Float32Array(step.position + 1);
    if (step.sets !== null) {
      for (const set of step.sets) {
        if (set !== null) for (const position of set) ++readers[position];
      }
    } else {
      for (let p = 0; p < readers.length; ++p) readers[p] = step.readers[Math.floor(p / step.width)];
    }
    return readers;
  }

  /** What a step read above the mean of all steps, as a share of its sets, by position. */
  standsOut(step) {
    return this.readersAt(step).map(
        (heads, p) => heads / step.setCount - this.total[Math.floor(p / this.width)] / this.setCount);
  }

  neverRead(position) { return !(this.total[Math.floor(position / this.width)] > 0); }
  /** Share of the prompt that no set held in any step; null where no head reads sets. */
  neverShare() {
    if (!this.known().some((step) => step.setCount > 0)) return null;
    let never = 0;
    for (let p = 0; p < this.prompt; ++p) never += this.neverRead(p) ? 1 : 0;
    return never / this.prompt;
  }

  sums() {
    const known = this.known(), means = known.map((step) => step.mean).filter((mean) => mean !== null);
    return {read: sumOf(known.map((step) => step.read)), index: sumOf(known.map((step) => step.index)),
            dense: sumOf(known.map((step) => step.dense)), steps: known.length,
            mean: means.length > 0 ? sumOf(means) / means.length : null};
  }

  /** Passages of the prompt by `order` (rank, mean, first), with the tokens of the answer that read each most. */
  passages(most, order) {
    const steps = this.known().filter((step) => step.reads > 0);
    if (steps.length === 0) return [];
    const size = Math.max(32, this.width), count = Math.ceil(this.prompt / size), list = [];
    for (let i = 0; i < count; ++i) list.push({first: i * size, end: Math.min(this.prompt, (i + 1) * size), shares: []});
    for (const step of steps) {
      const per = size / step.width;
      list.forEach((passage, i) => {
        let tokens = 0;
        for (let bin = i * per; bin < (i + 1) * per && bin * step.width < this.prompt; ++bin) {
          tokens += step.readers[bin] * Math.min(step.width, this.prompt - bin * step.width);
        }
        passage.shares.push({token: step.number + 1, share: tokens / step.reads});
      });
    }
    for (const passage of list) {
      passage.mean = sumOf(passage.shares.map((each) => each.share)) / steps.length;
      passage.words = passage.shares.filter((each) => each.share > 0).sort((a, b) => b.share - a.share).slice(0, 6);
      passage.best = passage.words.length > 0 ? passage.words[0].share : 0;
      // In units of what chance would make of the mean; the floor keeps what is hardly ever read from ranking high.
      passage.rank = (passage.best - passage.mean) / Math.sqrt(passage.mean + 0.005);
      delete passage.shares;
    }
    return list.filter((passage) => passage.best > 0)
        .sort((a, b) => order === 'first' ? a.first - b.first : b[order] - a[order] || a.first - b.first).slice(0, most);
  }
}

/** Sets of a step, [row] positions or null for everything, as an event of a saved page: each set once, as differences. */
function packedSets(step, sets) {
  const known = new Map(), lists = [];
  const rows = sets.map((set) => {
    if (set === null) return -1;
    const list = set.map((position, i) => i === 0 ? position : position - set[i - 1]), key = list.join();
    if (!known.has(key)) known.set(key, lists.push(list) - 1);
    return known.get(key);
  });
  return {kind: 'sets', step, lists, rows};
}

function unpackedSets(event) {
  const lists = event.lists.map((list) => {
    let position = 0;
    return list.map((difference) => position += difference);
  });
  return event.rows.map((row) => row < 0 ? null : lists[row]);
}

const sumOf = (values) => values.reduce((a, b) => a + b, 0);
