// Shows what the server streams: `now` (where the job stands, each second) and `history` (what happened, when it was read again).
import { Timeline, swatch } from "./timeline.js";

const FIRST = 16;
const WINDOW_MS = 60_000;
const LEAST_MS = 5_000; // ranks note their steps every few seconds: a pace of less says little
const byId = (id) => document.getElementById(id);
const steps = new Map(); // by node: [[when, step], ...], over the last minute
const key = keyOfLink();
const troubles = new Map();
const filled = new Map();
let now = null;
let nowAt = 0;
let past = null;
let showsAll = false;
const timeline = new Timeline(byId("drawing"), byId("canvas"), (text) => setText(byId("pointed"), text));

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A cell is [text, class], or [text, class, what unfolds below it].
function cell(text, name = "", more = "") {
  return [String(text ?? ""), name, more];
}

// Rows that have not changed stay as they are: somebody may be reading them, or copying.
function fill(id, rows) {
  const key = JSON.stringify(rows);
  if (filled.get(id) === key) return;
  filled.set(id, key);
  byId(id).replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map(([text, name, more]) => {
      const made = document.createElement("td");
      made.textContent = text;
      if (name) made.className = name;
      if (more) made.append(unfolded(more));
      return made;
    }));
    return row;
  }));
}

function unfolded(text) {
  const [made, title, all] = [document.createElement("details"), document.createElement("summary"), document.createElement("pre")];
  title.textContent = "all of it";
  all.textContent = text;
  all.tabIndex = 0;
  made.append(title, all);
  return made;
}

function shows(id, is) {
  byId(id).hidden = !is;
}

const number = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const count = (value, one) => `${number(value)} ${one}${value === 1 ? "" : "s"}`;
const milliseconds = (value) => (value === null || value === undefined ? "" : number(value, 1));
const percent = (ratio) => `${number(ratio * 100, 1)} %`;

export function duration(seconds) {
  if (seconds < 60) return `${number(seconds, 1)} s`;
  const whole = Math.floor(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

// --- what is known now ---------------------------------------------------------------------------------------------

function pace(name, step, at) {
  const seen = steps.get(name) ?? [];
  if (seen.length && step < seen[seen.length - 1][1]) seen.length = 0;
  if (!seen.length || step !== seen[seen.length - 1][1]) seen.push([at, step]);
  while (seen.length > 2 && at - seen[0][0] > WINDOW_MS) seen.shift();
  steps.set(name, seen);
  const [first, last] = [seen[0], seen[seen.length - 1]];
  const [lasted, done] = [last[0] - first[0], last[1] - first[1]];
  // Where no further step comes for long, the pace is that no more.
  if (lasted < LEAST_MS || at - last[0] > Math.max(2 * LEAST_MS, (5 * lasted) / done)) return null;
  return (done * 1000) / lasted;
}

function figures(status, perS) {
  const found = [];
  const add = (name, value, note = "") => found.push([name, value, note]);
  add("step", number(status.newest_step), status.total_steps ? `of ${number(status.total_steps)}` : "");
  if (perS !== null) add("steps per second", number(perS, 2), status.total_steps && perS > 0 && status.total_steps > status.newest_step ? `about ${duration((status.total_steps - status.newest_step) / perS)} to go` : "");
  if (status.loss !== null && status.loss !== undefined) add("loss", typeof status.loss === "number" ? status.loss.toPrecision(4) : status.loss);
  if (status.epoch) add("epoch", number(status.epoch));
  if (past?.goodput !== null && past?.goodput !== undefined) add("goodput", percent(past.goodput), "useful time");
  if (past?.ettr !== null && past?.ettr !== undefined) add("ETTR", percent(past.ettr), "of all time");
  add("common checkpoint", status.committed_step ? `step ${number(status.committed_step)}` : "none yet", status.committed_step && status.steps_since_checkpoint ? `${count(status.steps_since_checkpoint, "step")} ago` : "");
  if (past) {
    add("recoveries", number(past.failures), past.resumptions ? `and ${count(past.resumptions, "stop")} in order` : "");
    add("steps lost", past.lost_steps);
    if (past.hangs) add("hangs", number(past.hangs));
    if (past.stragglers) add("slow ranks", number(past.stragglers), "found");
    if (past.mismatches) add("replicas differed", number(past.mismatches), "saves not committed");
  }
  if (status.notices) add("notices", number(status.notices), "asked to leave");
  add("generation", number(status.generation));
  add("scheduler", status.scheduler.alive ? "runs" : "does not run", `incarnation ${status.scheduler.incarnation}`);
  const standbys = status.standbys.filter((row) => row.state === "live").length;
  if (status.standbys.length) add("standbys", number(standbys), standbys < status.standbys.length ? `of ${status.standbys.length}` : "ready or warming up");
  byId("figures").replaceChildren(...found.map(([name, value, note]) => {
    const box = document.createElement("div");
    const [term, said] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    said.textContent = value;
    if (note) {
      const small = document.createElement("small");
      small.textContent = ` ${note}`;
      said.append(small);
    }
    box.append(term, said);
    return box;
  }));
}

function alerts(status) {
  const found = [...status.alerts];
  if (past?.mismatch) found.push(past.mismatch);
  for (const unread of [...status.unreadable, ...(past?.unreadable ?? [])]) found.push(`not read: ${unread}`);
  shows("alerts", found.length > 0);
  const key = JSON.stringify(found);
  if (alerts.shown === key) return;
  alerts.shown = key;
  byId("alerts-list").replaceChildren(...[...new Set(found)].map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}

function ranks(status, at) {
  const rows = status.ranks;
  const shown = showsAll ? rows : rows.slice(0, FIRST);
  let all = null;
  for (const row of rows) {
    const perS = pace(row.node_id, row.step, at);
    if (perS !== null && row.state === "live") all = all === null ? perS : Math.max(all, perS);
    row.perS = perS;
  }
  fill("rank-rows", shown.map((row) => [
    cell(row.rank), cell(row.node_id), cell(row.state), cell(number(row.step), "n"), cell(row.perS === null ? "" : number(row.perS, 2), "n"), cell(milliseconds(row.data_ms), "n"), cell(milliseconds(row.compute_ms), "n"), cell(row.reason, "why"),
  ]));
  shows("all-ranks", rows.length > FIRST);
  setText(byId("all-ranks"), showsAll ? `Only the first ${FIRST}` : `All ${rows.length}`);
  return all;
}

function missing(status) {
  shows("missing", status.lost.length > 0);
  const goneS = (performance.now() - nowAt) / 1000;
  fill("missing-rows", status.lost.slice(0, 50).map((row) => {
    const leftS = status.scheduler.alive ? Math.max(0, row.rejoin_left_s - goneS) : row.rejoin_left_s;
    return [cell(row.node_id), cell(row.rank), cell(row.state), cell(leftS > 0 ? `${Math.ceil(leftS)} s` : ""), cell(row.reason, "why")];
  }));
}

function events(status) {
  fill("event-rows", [...status.shown_events].reverse().map((row) => [
    cell(row.time?.slice(0, 19).replace("T", " "), "time"), cell(row.kind), cell(row.node), cell(row.step === null ? "" : number(row.step), "n"), cell(row.reason, "why", row.details?.includes("\n") ? row.details : ""),
  ]));
}

function trouble(of, text) {
  troubles.set(of, text);
  const told = [...troubles.values()].filter(Boolean).join(" ");
  shows("trouble", Boolean(told));
  setText(byId("trouble"), told);
}

function showNow(found, ageMs) {
  trouble("stream", "");
  trouble("now", found.error ? `Not read: ${found.error} It is read again.` : "");
  if (found.error) {
    // Nobody knows how a row goes on.
    timeline.isOver = true;
    if (now) setText(byId("state"), `${now.state} (${duration((performance.now() - nowAt) / 1000)} ago)`);
    return;
  }
  if (now && (now.job !== found.job || now.run !== found.run)) steps.clear();
  [now, nowAt] = [found, performance.now() - ageMs];
  if (now.waits_for.length) steps.clear();
  setText(byId("job"), `Job ${now.job.slice(0, 8)}, run ${now.run}`);
  document.title = `${now.state}, step ${now.newest_step} - job ${now.job.slice(0, 8)}`;
  setText(byId("state"), now.state);
  setText(byId("since"), [now.waits_for.length ? `waits for ${now.waits_for.join(", ")}${now.waits_s === null ? "" : ` (for ${duration(now.waits_s)})`}` : "", now.reason].filter(Boolean).join("; "));
  setText(byId("source"), `From ${now.path}.`);
  const perS = ranks(now, nowAt);
  figures(now, perS);
  alerts(now);
  missing(now);
  events(now);
  // As where it cannot be read: where no scheduler writes.
  timeline.isOver = now.is_over || !now.scheduler.alive;
}

// --- what has happened ---------------------------------------------------------------------------------------------

function showPast(found, ageMs, nowMs) {
  trouble("history", found.error && !troubles.get("now") ? `The history is not read: ${found.error}` : "");
  if (found.error) return;
  const isFirst = past === null;
  past = found;
  timeline.take(found, nowMs);
  if (isFirst) {
    byId("key").replaceChildren(...found.key.map(({ colour, meaning }, index) => {
      const item = document.createElement("li");
      item.append(swatch(colour, index), meaning);
      return item;
    }));
  }
  shows("no-recoveries", !found.recoveries.length);
  shows("recoveries", found.recoveries.length > 0);
  fill("recovery-rows", [...found.recoveries].reverse().map((row) => [
    cell(duration((row.at_ms - found.begin_ms) / 1000), "time"), cell(row.because, "why"), ...row.parts_ms.map((ms) => cell(`${number(ms / 1000, 2)} s`, "n")), cell(row.lost_steps, "n"),
  ]));
  shows("no-checkpoints", !found.checkpoints.length);
  shows("checkpoints", found.checkpoints.length > 0);
  fill("checkpoint-rows", found.checkpoints.map((row) => [
    cell(number(row.step), "n"), cell(row.state), cell(`${row.ranks} of ${row.of}`, "n"), cell(row.tiers.join(", ")), cell(row.copies.join(", ")),
  ]));
  if (now) {
    figures(now, ranks(now, nowAt));
    alerts(now);
  }
}

async function askPlan() {
  const [button, list] = [byId("ask-plan"), byId("plan")];
  button.disabled = true;
  list.replaceChildren("Reading the files ...");
  let lines;
  try {
    const answer = await fetch(`plan?key=${encodeURIComponent(key)}`);
    const told = answer.ok ? await answer.json() : { error: `the server answers ${answer.status}` };
    lines = told.error ? [told.error] : told;
  } catch (error) {
    lines = [`No answer: ${error.message}`];
  }
  list.replaceChildren(...lines.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
  button.disabled = false;
}

function keyOfLink() {
  // Of this tab alone, and out of the address line.
  if (location.hash.length > 1) {
    sessionStorage.setItem("key", location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("key") ?? "";
}

function begin() {
  const stream = new EventSource(`stream?key=${encodeURIComponent(key)}`);
  const on = (name, show) => stream.addEventListener(name, (event) => {
    const { age_ms: ageMs, now_ms: nowMs, value } = JSON.parse(event.data);
    show(value, ageMs, nowMs);
  });
  on("now", showNow);
  on("history", showPast);
  stream.addEventListener("error", () => {
    const isClosed = stream.readyState === EventSource.CLOSED;
    trouble("stream", isClosed ? "This is the page of an earlier `recovery open`, or not its whole link: open the link that it prints." : "Nobody serves this page at the moment. It is asked for again.");
    timeline.isOver = true;
  });
  byId("ask-plan").addEventListener("click", askPlan);
  byId("all-ranks").addEventListener("click", () => {
    showsAll = !showsAll;
    if (now) ranks(now, nowAt);
  });
  setInterval(() => {
    if (now?.lost.length) missing(now);
    timeline.draw();
  }, 1000);
}

begin();
