// The timeline: one row for each slot, drawn on a canvas, since a job of 1,000 ranks has more spans than a browser likes elements.

const [LEFT, LEFT_OF_PHONES, PHONE] = [130, 84, 600]; // pixels: where time begins, and the width up to which a screen is a phone's
const TOP = 34;
const BOTTOM = 22;
const [HIGHEST, PIXELS] = [8_000, 16e6]; // of a canvas: browsers draw nothing on one that is much larger
const PATTERNED = 14; // pixels of a row: in less a pattern is noise
const TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
// A pattern beside each colour: for those who see none.
const PATTERNS = ["solid", "rising", "dots", "upright", "level", "cross", "falling", "dense", "grid"];

function pattern(context, colour, index) {
  const size = 8;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const on = tile.getContext("2d");
  on.fillStyle = colour;
  on.fillRect(0, 0, size, size);
  on.strokeStyle = on.fillStyle = "rgba(255,255,255,.75)";
  on.lineWidth = 1.3;
  const line = (...points) => {
    on.beginPath();
    for (let at = 0; at < points.length; at += 4) {
      on.moveTo(points[at], points[at + 1]);
      on.lineTo(points[at + 2], points[at + 3]);
    }
    on.stroke();
  };
  switch (PATTERNS[index % PATTERNS.length]) {
    case "rising": line(-1, 9, 9, -1); break;
    case "falling": line(-1, -1, 9, 9); break;
    case "cross": line(-1, 9, 9, -1, -1, -1, 9, 9); break;
    case "level": line(0, 4, 8, 4); break;
    case "dots": on.fillRect(3, 3, 2, 2); break;
    case "upright": line(4, 0, 4, 8); break;
    case "dense": line(0, 2, 8, 2, 0, 6, 8, 6); break;
    case "grid": line(4, 0, 4, 8, 0, 4, 8, 4); break;
    default: break;
  }
  return context.createPattern(tile, "repeat");
}

export function swatch(colour, index) {
  const made = document.createElement("canvas");
  made.width = made.height = 16;
  made.setAttribute("aria-hidden", "true");
  const on = made.getContext("2d");
  on.fillStyle = pattern(on, colour, index);
  on.fillRect(0, 0, 16, 16);
  return made;
}

export class Timeline {
  constructor(box, canvas, say) {
    this.box = box;
    this.canvas = canvas;
    this.say = say;
    this.isOver = false;
    this.past = null;
    this.takenAt = 0;
    this.shownMs = null; // null: the whole run
    this.rightMs = null; // null: now
    this.row = 0;
    this.atMs = null;
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerdown", (event) => this.point(event));
    box.addEventListener("focus", () => this.tell());
    new ResizeObserver(() => this.draw()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  take(past, nowMs) {
    if (past.run !== this.past?.run) [this.atMs, this.rightMs] = [null, null];
    this.past = past;
    this.row = Math.min(this.row, Math.max(0, past.rows.length - 1));
    [this.nowMs, this.takenAt] = [nowMs, performance.now()];
    this.draw();
  }

  get endMs() {
    if (this.isOver) return this.past.end_ms;
    return Math.max(this.past.end_ms, this.nowMs + performance.now() - this.takenAt);
  }

  // Until when a row does this: what goes on at the last record goes on until now.
  until(end) {
    return end >= this.past.end_ms ? Math.max(end, this.endMs) : end;
  }

  get window() {
    const right = this.rightMs ?? this.endMs;
    const whole = Math.max(1000, this.endMs - this.past.begin_ms);
    const shown = Math.min(this.shownMs ?? whole, whole);
    return [Math.max(this.past.begin_ms, right - shown), Math.max(right, this.past.begin_ms + shown)];
  }

  get left() {
    return this.canvas.clientWidth < PHONE ? LEFT_OF_PHONES : LEFT;
  }

  get rowPixels() {
    const rows = this.past.rows.length + 1;
    return rows <= 40 ? 22 : rows <= 200 ? 8 : Math.min(4, HIGHEST / rows);
  }

  x(ms) {
    const [from, to] = this.window;
    return this.left + ((this.canvas.clientWidth - this.left - 6) * (ms - from)) / (to - from);
  }

  draw() {
    if (!this.past) return;
    const [canvas, high] = [this.canvas, this.rowPixels];
    const height = TOP + high * (this.past.rows.length + 1) + BOTTOM;
    canvas.style.height = `${height}px`;
    const width = canvas.clientWidth;
    const sharp = Math.min(window.devicePixelRatio || 1, Math.sqrt(PIXELS / (width * height)));
    if (canvas.width !== Math.round(width * sharp) || canvas.height !== Math.round(height * sharp)) {
      canvas.width = Math.round(width * sharp);
      canvas.height = Math.round(height * sharp);
    }
    const on = canvas.getContext("2d");
    on.setTransform(sharp, 0, 0, sharp, 0, 0);
    on.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    this.ink = style.getPropertyValue("--ink");
    this.quiet = style.getPropertyValue("--quiet");
    this.line = style.getPropertyValue("--line");
    on.font = "12px system-ui, sans-serif";
    this.axis(on, width, height);
    const fills = this.past.key.map(({ colour }, index) => (high < PATTERNED ? colour : pattern(on, colour, index)));
    on.save();
    on.beginPath();
    on.rect(this.left, 0, width - this.left, height);
    on.clip();
    this.past.rows.forEach(([, spans], index) => this.spans(on, fills, spans, TOP + index * high, high));
    this.scheduler(on, TOP + this.past.rows.length * high, high);
    this.marks(on, height);
    on.restore();
    this.names(on, high);
    if (document.activeElement === this.box && this.atMs !== null) {
      on.strokeStyle = this.ink;
      on.lineWidth = 2;
      on.strokeRect(this.left, TOP + this.row * high, width - this.left - 6, high);
      on.fillStyle = this.ink;
      on.fillRect(this.x(this.atMs) - 1, TOP + this.row * high, 2, high);
    }
  }

  axis(on, width, height) {
    const [from, to] = this.window;
    const room = Math.max(1, Math.floor((width - this.left) / 90));
    const every = 1000 * (TICKS.find((seconds) => (to - from) / 1000 / seconds <= room) ?? TICKS.at(-1));
    const begin = this.past.begin_ms;
    on.textAlign = "center";
    for (let at = begin + Math.ceil((from - begin) / every) * every; at <= to; at += every) {
      const x = this.x(at);
      on.strokeStyle = this.line;
      on.lineWidth = 1;
      on.beginPath();
      on.moveTo(x, TOP);
      on.lineTo(x, height - BOTTOM);
      on.stroke();
      on.fillStyle = this.quiet;
      on.fillText(clock((at - begin) / 1000), x, height - 7);
    }
  }

  names(on, high) {
    on.textAlign = "right";
    on.fillStyle = this.ink;
    const every = Math.ceil(14 / high);
    const rows = [...this.past.rows.map(([name]) => name), "scheduler"];
    rows.forEach((name, index) => {
      if (index % every && index !== rows.length - 1) return;
      on.fillText(shortened(name, Math.floor(this.left / 7.5)), this.left - 8, TOP + index * high + Math.max(high / 2 + 4, 9));
    });
  }

  spans(on, fills, spans, y, high) {
    const [from, to] = this.window;
    spans.forEach(([doing, begin, end]) => {
      const until = this.until(end);
      if (until < from || begin > to) return;
      const left = this.x(begin);
      on.fillStyle = fills[doing];
      on.fillRect(left, y + 1, Math.max(1, this.x(until) - left), Math.max(2, high - 2));
    });
  }

  scheduler(on, y, high) {
    const from = this.x(this.past.begin_ms);
    on.fillStyle = "#7b8796";
    on.fillRect(from, y + high / 3, this.x(this.endMs) - from, Math.max(2, high / 3));
    on.fillStyle = "#c94a4a";
    for (const [begin, end] of this.past.outages) on.fillRect(this.x(begin), y + 1, Math.max(2, this.x(end) - this.x(begin)), high - 2);
  }

  marks(on, height) {
    let free = -Infinity;
    on.textAlign = "left";
    on.lineWidth = 1;
    for (const [at, generation, step] of this.past.plans) {
      const x = this.x(at);
      on.strokeStyle = "#4a7fc1";
      on.setLineDash([3, 3]);
      on.beginPath();
      on.moveTo(x, 16);
      on.lineTo(x, height - BOTTOM);
      on.stroke();
      if (x < free) continue;
      const label = `generation ${generation}: step ${step}`;
      on.fillStyle = this.ink;
      on.fillText(label, x + 3, 12);
      free = x + on.measureText(label).width + 12;
    }
    on.setLineDash([]);
    on.fillStyle = "#3a9d5d";
    for (const [at] of this.past.commits) {
      const x = this.x(at);
      on.beginPath();
      on.moveTo(x, TOP - 3);
      on.lineTo(x - 4, TOP - 11);
      on.lineTo(x + 4, TOP - 11);
      on.fill();
    }
  }

  // --- pointed at, by hand or by keys ------------------------------------------------------------------------------

  point(event) {
    if (!this.past) return;
    const place = this.canvas.getBoundingClientRect();
    const [from, to] = this.window;
    const row = Math.floor((event.clientY - place.top - TOP) / this.rowPixels);
    const share = (event.clientX - place.left - this.left) / (place.width - this.left - 6);
    if (row < 0 || row >= this.past.rows.length || share < 0 || share > 1) return;
    [this.row, this.atMs] = [row, from + share * (to - from)];
    this.tell();
  }

  key(event) {
    if (!this.past || event.ctrlKey || event.metaKey || event.altKey) return;
    const [from, to] = this.window;
    const part = (to - from) / 50;
    this.atMs ??= to;
    const last = Math.max(0, this.past.rows.length - 1);
    const does = {
      ArrowUp: () => { this.row = Math.max(0, this.row - 1); },
      ArrowDown: () => { this.row = Math.min(last, this.row + 1); },
      ArrowLeft: () => { this.move(this.atMs - part); },
      ArrowRight: () => { this.move(this.atMs + part); },
      Home: () => { this.move(this.past.begin_ms); },
      End: () => { this.rightMs = null; this.atMs = this.endMs; },
      "+": () => { this.zoom((to - from) / 2); },
      "-": () => { this.zoom((to - from) * 2); },
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
    this.row = Math.min(this.row, last);
    const y = TOP + this.row * this.rowPixels;
    if (y < this.box.scrollTop + TOP) this.box.scrollTop = y - TOP;
    if (y + this.rowPixels > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = y + this.rowPixels - this.box.clientHeight;
    this.tell();
    this.draw();
  }

  move(ms) {
    const [from, to] = this.window;
    this.atMs = Math.min(this.endMs, Math.max(this.past.begin_ms, ms));
    if (this.atMs < from) this.rightMs = this.atMs + (to - from);
    if (this.atMs > to) this.rightMs = this.atMs;
  }

  zoom(shownMs) {
    const whole = this.endMs - this.past.begin_ms;
    this.shownMs = shownMs >= whole ? null : Math.max(100, shownMs);
    this.rightMs = this.shownMs === null || this.atMs >= this.endMs - shownMs / 2 ? null : this.atMs + shownMs / 2;
  }

  tell() {
    const row = this.past?.rows[this.row];
    if (!row) return;
    const at = this.atMs ?? this.endMs;
    const [name, spans] = row;
    const found = spans.findLast(([, begin]) => begin <= at);
    const end = found && this.until(found[2]);
    const isThere = found && at <= end;
    const does = isThere ? this.past.key[found[0]].meaning : "not there";
    const told = end > found?.[2] ? "now" : clock((end - this.past.begin_ms) / 1000, 1);
    const began = isThere ? `, from ${clock((found[1] - this.past.begin_ms) / 1000, 1)} to ${told}` : "";
    this.say(`${name} at ${clock((at - this.past.begin_ms) / 1000, 1)}: ${does}${began}`);
  }
}

// The end of a name says as much as its begin.
function shortened(name, most) {
  return name.length <= most ? name : `${name.slice(0, Math.ceil(most / 2) - 1)}\u2026${name.slice(name.length - Math.floor(most / 2))}`;
}

function clock(seconds, digits = 0) {
  if (seconds < 60) return `${seconds.toFixed(seconds % 1 && !digits ? 1 : digits)} s`;
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60), seconds % 60];
  const small = digits || rest >= 0.05 ? ` ${rest.toFixed(digits)} s` : "";
  if (hours) return `${hours} h${minutes ? ` ${minutes} min` : ""}`;
  return `${minutes} min${small}`;
}
