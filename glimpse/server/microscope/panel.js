// ---- One answer: its tokens, what each step read, the document, the passages.

const pageTokens = 1500;  // of the document that are shown at a time
const playPause = 250;    // milliseconds for a token

class Panel {
  /** `fetchSets` gives the sets of a step, or null where nobody has them. */
  constructor(name, run, fetchSets) {
    this.name = name;
    this.run = run;
    this.fetchSets = fetchSets;
    this.token = 0;
    this.follows = true;   // the newest token is chosen
    this.part = 0;         // of the document
    this.tokens = [];      // elements of the answer
    this.timer = null;     // of Play
    this.due = false;      // a redraw is coming
    this.ranked = -1;      // steps that the list of passages is of
    this.element = document.getElementById('panel').content.firstElementChild.cloneNode(true);
    this.map = new MapView(this.element, (position, words) => this.showWhere(position, words));
    const label = (name, text) => this.find(name).setAttribute('aria-label', text + ', ' + this.name);
    label('.answer', 'Answer');
    label('.slider', 'Token of the answer');
    label('.play', 'Play the answer again');
    label('.document', 'Document');
    label('.order', 'Order of the passages');
    label('.passages', 'Passages and the words they fed');
    label('.table', 'What each layer and head read');
    this.find('.slider').addEventListener('input', (event) => this.choose(Number(event.target.value), true));
    this.find('.play').addEventListener('click', () => this.play());
    this.find('.as-table').addEventListener('click', () => this.showTable(this.find('.table').hidden));
    this.find('.order').addEventListener('change', () => {
      this.ranked = -1;
      this.showPassages();
    });
    this.find('.back').addEventListener('click', () => this.showPart(this.part - 1));
    this.find('.on').addEventListener('click', () => this.showPart(this.part + 1));
    this.find('.most').addEventListener('click', () => this.showPosition(this.mostRead()));
    this.find('.answer').addEventListener('click', (event) => {
      const token = event.target.closest('.token');
      if (token !== null) this.choose(Number(token.dataset.token), true);
    });
    this.find('.answer').addEventListener('keydown', (event) => this.key(event));
  }

  find(name) { return this.element.querySelector(name); }
  get step() { return this.run.stepOf(this.token); }

  /** Something came. What is drawn is drawn once a frame, however much comes. */
  changed() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.draw();
    });
  }

  draw() {
    const run = this.run;
    if (run.header === null) return;
    this.find('.title').textContent = this.name + ': ' + run.header.policy +
        (run.header.budget === null ? '' : ', budget ' + run.header.budget);
    this.showTokens();
    this.find('.slider').max = Math.max(0, run.written - 1);
    if (this.follows && run.written > 0) this.token = run.written - 1;
    // A token may be there before the step that wrote it.
    if (this.follows && this.step === undefined && this.token > 0 && run.end === null) --this.token;
    this.showChosen();
  }

  showTokens() {
    const box = this.find('.answer'), run = this.run;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
    for (let i = this.tokens.length; i < run.written; ++i) {
      const token = element('span', 'token', shown(run.texts[run.prompt + i]));
      token.dataset.token = i;
      this.tokens.push(token);
      box.append(token);
    }
    this.tokens.forEach((token, i) => {
      const step = run.stepOf(i), name = coverageClass(step === undefined ? null : step.mean);
      if (token.dataset.coverage === name) return;
      token.dataset.coverage = name;
      token.className = 'token ' + name;
      token.title = step === undefined ? (i === 0 ? 'out of the prefill' : 'its step was lost') :
          'mass captured: ' + mass(step.mean);
    });
    if (this.follows && atEnd) box.scrollTop = box.scrollHeight;
  }

  key(event) {
    const moves = {ArrowLeft: this.token - 1, ArrowRight: this.token + 1, Home: 0, End: this.run.written - 1};
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.choose(moves[event.key], true);
  }

  choose(token, byHand) {
    const last = this.run.written - 1;
    if (last < 0) return;
    if (this.tokens.length <= last) this.showTokens();  // what came since the last frame
    this.token = Math.max(0, Math.min(last, token));
    if (byHand) {
      this.follows = this.run.end === null && this.token === last;
      this.pause();
    }
    this.showChosen();
    const now = this.tokens[this.token], box = this.find('.answer');
    const over = now.offsetTop - box.offsetTop;
    if (over < box.scrollTop || over + now.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = over - box.clientHeight / 2;
    }
  }

  play() {
    if (this.timer !== null) return this.pause();
    this.follows = false;
    this.find('.play').textContent = 'Pause';
    if (this.token >= this.run.written - 1) this.choose(0, false);
    this.timer = setInterval(() => {
      if (this.token >= this.run.written - 1) return this.pause();
      this.choose(this.token + 1, false);
    }, playPause);
  }
  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.find('.play').textContent = 'Play';
  }

  /** All that speaks of the chosen token; its exact sets follow when they are there. */
  showChosen() {
    this.tokens.forEach((token, i) => token.classList.toggle('now', i === this.token));
    this.find('.slider').value = this.token;
    this.find('.slider').setAttribute('aria-valuetext', 'token ' + (this.token + 1) + ' of ' + this.run.written);
    this.showFacts();
    this.map.show(this.run, this.step);
    if (!this.find('.table').hidden) this.showTable(true);
    this.showPart(this.part);
    this.showPassages();
    if (!this.follows) this.want(this.step);
  }

  async want(step) {
    if (step === undefined || step.sets !== null || this.wanted === step) return;
    this.wanted = step;
    const sets = await this.fetchSets(step.number).catch(() => null);
    if (this.wanted === step) this.wanted = null;
    if (sets === null) return;
    this.run.add(packedSets(step.number, sets));
    if (this.step !== step) return;
    this.map.show(this.run, step);
    if (!this.find('.table').hidden) this.showTable(true);
    this.showPart(this.part);
  }

  showFacts() {
    const run = this.run, step = this.step, chosen = this.find('.chosen'), bytes = this.find('.bytes');
    bytes.replaceChildren();
    // Read out where the user chose it, not token by token.
    chosen.setAttribute('aria-live', this.follows || this.timer !== null ? 'off' : 'polite');
    chosen.textContent = '';
    if (run.written > 0) {
      chosen.append(element('b', '', 'Token ' + (this.token + 1) + ' of ' + run.written + ': ' +
                                         quoted(run.texts[run.prompt + this.token])));
      if (this.token === 0) chosen.append(' came out of the prefill, which has no sets.');
      if (this.token > 0 && step === undefined) chosen.append(' has no step here: it was lost, or is not there yet.');
    }
    if (step !== undefined) {
      const heads = sumOf(step.counts.map((tokens) => tokens === null ? step.position + 1 : tokens)) / run.rows;
      chosen.append('. To write it, the query of ' + quoted(run.texts[step.position]) + ' read ' +
          count(Math.round(heads)) + ' of ' + count(step.position + 1) + ' tokens in each head on average. ' +
          'Mass captured: mean ' + mass(step.mean) + ', least ' + mass(step.least) + '.');
      bytes.append(...this.bytesRow('This token', step.read, step.dense));
    }
    const sums = run.sums();
    if (sums.steps > 0) bytes.append(...this.bytesRow('All ' + sums.steps + ' steps', sums.read, sums.dense));
    if (run.lost > 0) bytes.append(element('span', '', run.lost + ' steps were lost'));
  }

  bytesRow(what, read, whole) {
    const share = element('div', 'share'), part = element('div');
    part.style.width = (whole > 0 ? Math.min(100, 100 * read / whole) : 0) + '%';
    share.append(part);
    return [element('span', '', what), share,
            element('span', '', bytesText(read) + ' of ' + bytesText(whole) + ' (' + percent(read, whole) + ')')];
  }

  showTable(wanted) {
    const place = this.find('.table'), button = this.find('.as-table');
    place.hidden = !wanted;
    button.setAttribute('aria-expanded', String(wanted));
    button.textContent = wanted ? 'Hide the table' : 'Show as table';
    if (!wanted) return;
    if (this.step !== undefined) this.want(this.step);
    place.replaceChildren(this.map.table());
  }

  showWhere(position, words) {
    this.find('.where').textContent = words;
    for (const here of this.element.querySelectorAll('.document .here')) here.classList.remove('here');
    if (position === null) return;
    for (const piece of this.find('.document').children) {
      const first = Number(piece.dataset.first), end = Number(piece.dataset.end);
      if (position >= first && position < end) piece.classList.add('here');
    }
  }

  // ---- The document, a part at a time: neighbours of one kind share an element.

  showPart(part) {
    const run = this.run, parts = Math.max(1, Math.ceil(run.prompt / pageTokens)), box = this.find('.document');
    this.part = Math.max(0, Math.min(parts - 1, part));
    const first = this.part * pageTokens, end = Math.min(run.prompt, first + pageTokens), step = this.step;
    const readers = step === undefined ? null : run.readersAt(step), anySets = run.neverShare();
    const kindOf = (position) => {
      const share = readers === null || step.setCount === 0 ? 0 : readers[position] / step.setCount;
      if (share > 0) return 'h' + Math.min(4, 1 + Math.floor(share * 3.999));
      return anySets !== null && run.neverRead(position) ? 'never' : '';
    };
    const pieces = [];
    for (let at = first; at < end;) {
      const kind = kindOf(at);
      let last = at + 1;
      while (last < end && last - at < 64 && kindOf(last) === kind) ++last;
      const piece = element('span', kind, run.texts.slice(at, last).join(''));
      piece.dataset.first = at;
      piece.dataset.end = last;
      pieces.push(piece);
      at = last;
    }
    box.replaceChildren(...pieces);
    this.find('.back').disabled = this.part === 0;
    this.find('.on').disabled = this.part === parts - 1;
    this.find('.most').disabled = readers === null || step.setCount === 0;
    this.find('.page-of').textContent = 'tokens ' + count(first) + ' to ' + count(Math.max(first, end - 1)) + ' of ' +
        count(run.prompt) + (step !== undefined && step.sets === null && step.width > 1 ?
                                 ', in parts of ' + step.width : '');
    this.find('.never-share').textContent = anySets === null ? '' :
        percent(anySets, 1) + ' of the prompt’s tokens' + (run.width > 1 ? ', in parts of ' + run.width + '.' : '.');
  }

  /** The place of the prompt that this token read most above the mean: what every token reads says little. */
  mostRead() {
    const above = this.run.standsOut(this.step);
    let best = 0;
    for (let p = 0; p < this.run.prompt; ++p) if (above[p] > above[best]) best = p;
    return best;
  }

  showPosition(position) {
    this.showPart(Math.floor(position / pageTokens));
    this.showWhere(position, 'Position ' + count(position) + ' ' + quoted(this.run.texts[position]) + '.');
    const here = this.find('.document .here'), box = this.find('.document');
    if (here !== null) box.scrollTop = here.offsetTop - box.offsetTop - box.clientHeight / 3;
  }

  showPassages() {
    const run = this.run, place = this.find('.passages');
    const steps = run.steps.length;
    if (steps === this.ranked) return;
    const order = this.find('.order').value;
    if (this.follows && run.end === null && this.ranked > 0 && steps < this.ranked + 8) return;  // they change little
    this.ranked = steps;
    const list = run.passages(order === 'first' ? 2000 : 20, order);
    if (list.length === 0) {
      place.replaceChildren(element('p', 'hint', 'No head has read from a set yet.'));
      return;
    }
    const table = element('table'), head = element('thead'), body = element('tbody');
    head.append(tableRow([{text: 'Positions'}, {text: 'Best', number: true}, {text: 'Mean', number: true},
                          {text: 'Passage'}, {text: 'Words it fed most'}], 'th'));
    for (const passage of list) {
      const text = run.texts.slice(passage.first, passage.end).join('');
      const row = tableRow([{text: ''}, {text: percent(passage.best, 1), number: true},
                            {text: percent(passage.mean, 1), number: true}, {text, name: 'text'},
                            {text: '', name: 'words'}], 'td');
      const go = element('button', '', passage.first + '–' + (passage.end - 1));
      go.type = 'button';
      go.setAttribute('aria-label', 'Show positions ' + passage.first + ' to ' + (passage.end - 1));
      go.addEventListener('click', () => this.showPosition(passage.first));
      row.cells[0].append(go);
      for (const {token, share} of passage.words) {
        if (token >= run.written) continue;
        const word = element('button', '', shown(run.texts[run.prompt + token]).trim() || '␣');
        word.type = 'button';
        word.title = percent(share, 1) + ' of what was read for it';
        word.setAttribute('aria-label', 'Token ' + (token + 1) + ' ' + quoted(run.texts[run.prompt + token]));
        word.addEventListener('click', () => this.choose(token, true));
        row.cells[4].append(word);
      }
      body.append(row);
    }
    table.append(head, body);
    place.replaceChildren(table);
  }
}
