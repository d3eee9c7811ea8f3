"use strict";
// The trace: its data, and what a step of it says. All scripts of the page share one scope.

addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message;
});

const DATA = JSON.parse(document.getElementById("trace-data").textContent);
const STEP_COUNT = DATA.stepIndices.length;

// The elements of the arrays that describe requests and packets. `data.rs` writes them in this order.
const [
  REQUEST_DEVICE, REQUEST_END, REQUEST_QUEUE, REQUEST_NUMBER_IN_QUEUE, REQUEST_WR_ID, REQUEST_OPERATION, REQUEST_POSTED,
  REQUEST_TIMES, REQUEST_PSN_RANGE, REQUEST_PACKETS, REQUEST_RETRIES, REQUEST_OUTCOME, REQUEST_CQ, REQUEST_PEER_REQUEST,
  REQUEST_WQE, REQUEST_CQE, REQUEST_ACKS,
] = Array(17).keys();
const [
  PACKET_END, PACKET_TIME, PACKET_FLAGS, PACKET_OPCODE, PACKET_NAME, PACKET_DEST, PACKET_PSN, PACKET_BTH_FLAGS,
  PACKET_PKEY, PACKET_HEADERS, PACKET_LENGTH, PACKET_PAYLOAD, PACKET_DROPPED, PACKET_ROLE, PACKET_PEER_PACKET,
  PACKET_SOURCE, PACKET_DESTINATION, PACKET_RETRY_CAUSE,
] = Array(18).keys();
const [POSTED_TAG, POSTED_FLAGS, POSTED_LENGTH, POSTED_SGE_COUNT, POSTED_FIRST_SGE, POSTED_FIELDS] = Array(6).keys();
const [TIME_POSTED, TIME_DOORBELL, TIME_FIRST, TIME_LAST, TIME_ACKNOWLEDGED, TIME_COMPLETED, TIME_POLLED, TIME_PROCESSED] =
  Array(8).keys();
const FLAG_OUT = 1, FLAG_RETRANSMISSION = 2, FLAG_LOST = 4, FLAG_UNKNOWN = 8, FLAG_DUPLICATE = 16;
const EVENT_AT_APPLICATION = 1, EVENT_FAILURE = 2;

// The kinds of steps.
const POSTED = "p", DOORBELL = "d", PACKET = "s", ARRIVED = "a", RETRY = "r", COMPLETED = "c", POLLED = "l", OTHER_EVENT = "m";

const LEFT = 0, RIGHT = 1, HIDDEN = -1;

const STATUSES = new Map(DATA.statuses.map(([code, name, constant, explanation]) => [code, { name, constant, explanation }]));
const SYNDROMES = new Map(DATA.syndromes);

// The step at which each packet was sent, or arrived.
const sendSteps = new Int32Array(DATA.packets.length).fill(-1);
const arrivalSteps = new Int32Array(DATA.packets.length).fill(-1);
const postSteps = new Int32Array(DATA.requests.length).fill(-1);
const completionSteps = new Int32Array(DATA.requests.length).fill(-1);
// The receive request whose message a packet belongs to.
const receiveOfPacket = new Int32Array(DATA.packets.length).fill(-1);
// A doorbell that directly follows the post of its only request is shown in the row of the post.
const foldedDoorbells = new Uint8Array(STEP_COUNT);

// What is special about a step, as bits.
const FAILURE = 1, RETRANSMISSION = 2, OF_FAILED_REQUEST = 4;
const marks = new Uint8Array(STEP_COUNT);

function kindOf(step) { return DATA.stepKinds[step]; }
function indexOf(step) { return DATA.stepIndices[step]; }
function peerOf(packet) { return packet[PACKET_PEER_PACKET] < 0 ? null : DATA.packets[packet[PACKET_PEER_PACKET]]; }
function isFailed(request) { return request[REQUEST_OUTCOME] !== null && request[REQUEST_OUTCOME][0] !== 0; }

for (let step = 0; step < STEP_COUNT; step++) {
  const index = indexOf(step);
  switch (kindOf(step)) {
    case POSTED: postSteps[index] = step; break;
    case COMPLETED: completionSteps[index] = step; break;
    case PACKET: sendSteps[index] = step; break;
    case ARRIVED: arrivalSteps[index] = step; break;
    case DOORBELL: {
      const requests = DATA.doorbells[index][2];
      if (requests.length === 1 && step > 0 && kindOf(step - 1) === POSTED && indexOf(step - 1) === requests[0]) {
        foldedDoorbells[step] = 1;
      }
    }
  }
}
DATA.requests.forEach((request, id) => {
  if (request[REQUEST_QUEUE] === 1) {
    for (const packet of request[REQUEST_PACKETS]) receiveOfPacket[packet] = id;
  }
});
for (let step = 0; step < STEP_COUNT; step++) marks[step] = findMarks(step);

function findMarks(step) {
  const index = indexOf(step);
  let found = requestsOf(step).some((id) => isFailed(DATA.requests[id])) ? OF_FAILED_REQUEST : 0;
  switch (kindOf(step)) {
    case COMPLETED: return isFailed(DATA.requests[index]) ? found | FAILURE : found;
    case RETRY: return found | RETRANSMISSION;
    case OTHER_EVENT: return DATA.otherEvents[index][4] & EVENT_FAILURE ? found | FAILURE : found;
    case PACKET: case ARRIVED: {
      const packet = DATA.packets[index];
      const other = peerOf(packet);
      const flags = packet[PACKET_FLAGS] | (other === null ? 0 : other[PACKET_FLAGS]);
      if (packet[PACKET_ROLE][0] === "nak" || packet[PACKET_DROPPED] !== null
        || (other !== null && other[PACKET_DROPPED] !== null) || flags & FLAG_LOST) found |= FAILURE;
      return flags & FLAG_RETRANSMISSION ? found | RETRANSMISSION : found;
    }
  }
  return found;
}

// The time of a step on its own clock, in nanoseconds since the clock's first step.
function timeOf(step) {
  const index = indexOf(step);
  switch (kindOf(step)) {
    case POSTED: return DATA.requests[index][REQUEST_TIMES][TIME_POSTED];
    case COMPLETED: return DATA.requests[index][REQUEST_TIMES][TIME_COMPLETED];
    case POLLED: return DATA.requests[index][REQUEST_TIMES][TIME_POLLED];
    case DOORBELL: return DATA.doorbells[index][1];
    case RETRY: return DATA.retries[index][1];
    case OTHER_EVENT: return DATA.otherEvents[index][2];
    default: return DATA.packets[index][PACKET_TIME];
  }
}

// The queue pair of a step, as an index in DATA.ends, or -1.
function endOf(step) {
  const index = indexOf(step);
  switch (kindOf(step)) {
    case POSTED: case COMPLETED: case POLLED: return DATA.requests[index][REQUEST_END];
    case DOORBELL: return DATA.doorbells[index][0];
    case RETRY: return DATA.retries[index][0];
    case OTHER_EVENT: return DATA.otherEvents[index][1];
    default: return DATA.packets[index][PACKET_END];
  }
}

function deviceOf(step) {
  const index = indexOf(step);
  switch (kindOf(step)) {
    case POSTED: case COMPLETED: case POLLED: return DATA.requests[index][REQUEST_DEVICE];
    case OTHER_EVENT: return DATA.otherEvents[index][0];
    default: return DATA.ends[endOf(step)].device;
  }
}

// The requests that a step belongs to. The first one is the step's own.
function requestsOf(step) {
  const index = indexOf(step);
  switch (kindOf(step)) {
    case POSTED: case COMPLETED: case POLLED: return [index];
    case DOORBELL: return DATA.doorbells[index][2];
    case RETRY: return DATA.retries[index][4];
    case OTHER_EVENT: return [];
    default: return requestsOfPacket(index);
  }
}

function requestsOfPacket(index) {
  const packet = DATA.packets[index];
  const role = packet[PACKET_ROLE];
  const ids = [];
  if (role[0] === "request" || role[0] === "response") ids.push(role[1]);
  if (role[0] === "nak") ids.push(role[3]);
  if (role[0] === "nak" || role[0] === "ack") ids.push(...role[2]);
  ids.push(receiveOfPacket[index]);
  if (packet[PACKET_PEER_PACKET] >= 0) ids.push(receiveOfPacket[packet[PACKET_PEER_PACKET]]);
  return [...new Set(ids)].filter((id) => id >= 0);
}

// Numbers and texts.

const NUMBER_FORMAT = new Intl.NumberFormat("en");
function grouped(number) { return NUMBER_FORMAT.format(number); }
function hex(number, digits = 6) { return "0x" + number.toString(16).padStart(digits, "0"); }
function plural(count, noun) { return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`; }

function duration(nanos) {
  if (nanos < 1e3) return `${nanos} ns`;
  if (nanos < 1e6) return `${(nanos / 1e3).toFixed(nanos < 1e5 ? 2 : 1)} µs`;
  if (nanos < 1e9) return `${(nanos / 1e6).toFixed(nanos < 1e8 ? 2 : 1)} ms`;
  return `${(nanos / 1e9).toFixed(3)} s`;
}

// A time in microseconds with thin spaces between thousands, so that the digits of a column are aligned.
function clockTime(nanos) {
  const micros = Math.floor(nanos / 1000);
  const thousands = String(micros).replace(/\B(?=(\d{3})+$)/g, "\u2009");
  return `${thousands}.${String(nanos % 1000).padStart(3, "0")}`;
}

function requestName(id) {
  const request = DATA.requests[id];
  const operation = request[REQUEST_OPERATION].replace(/^RDMA /, "").replace(" with immediate", "+imm").replace(" with invalidate", "+inv");
  return `${operation} #${request[REQUEST_NUMBER_IN_QUEUE]}`;
}

function tagOf(request) {
  const posted = request[REQUEST_POSTED];
  return posted !== null && posted[POSTED_TAG] !== "0x0" ? posted[POSTED_TAG] : null;
}

function statusName(code) {
  return code === 0 ? "success" : STATUSES.get(code)?.name ?? `status ${code}`;
}

// In labels, the usual names of causes are too long.
function shortCause(cause) { return cause.replace("PSN sequence error NAK", "NAK").replace("RNR NAK", "RNR"); }

function packetName(packet) {
  const role = packet[PACKET_ROLE];
  if (role[0] === "nak") return role[4].replace(/^nak: /, "NAK: ").replace(/^RNR nak/, "RNR NAK");
  if (role[0] === "cm") return `CM ${role[1]}`;
  return DATA.names[packet[PACKET_NAME]].replace(/^(RC|UC) /, "");
}

// What a row shows: `label` in the diagram, `place` where it stands, `tones` as CSS classes, and `facts` for search
// and for screen readers.
function describe(step) {
  const index = indexOf(step);
  const bad = marks[step] & FAILURE ? " bad" : "";
  switch (kindOf(step)) {
    case POSTED: {
      const request = DATA.requests[index];
      const posted = request[REQUEST_POSTED];
      const length = posted === null ? "" : ` · ${grouped(posted[POSTED_LENGTH])} B`;
      return { place: "post", tones: "post", label: `post ${requestName(index)}${length}`, hasDoorbell: foldedDoorbells[step + 1] === 1 };
    }
    case DOORBELL: {
      const requests = DATA.doorbells[index][2];
      return { place: "post", tones: "doorbell", label: `doorbell, ${plural(requests.length, "request")}` };
    }
    case COMPLETED: {
      const request = DATA.requests[index];
      const outcome = request[REQUEST_OUTCOME];
      if (outcome === null) {
        return { place: "inside", tones: "completion", label: `${requestName(index)} done, unsignaled` };
      }
      const status = statusName(outcome[0]);
      // A failure's name is long, and its mark tells that the row is a completion.
      return { place: "completion", tones: `completion${bad || " ok"}`, label: `${bad ? "" : "CQE "}${requestName(index)}: ${status}` };
    }
    case POLLED: {
      const request = DATA.requests[index];
      return { place: "application", tones: "poll", label: `poll wr_id ${request[REQUEST_WR_ID]}` };
    }
    case RETRY: {
      const [, , psn, cause] = DATA.retries[index];
      return { place: "inside", tones: "retry", label: `retransmit: ${shortCause(cause)} · PSN ${psn}` };
    }
    case OTHER_EVENT: {
      const [, , , text, flags] = DATA.otherEvents[index];
      const place = flags & EVENT_AT_APPLICATION ? "application" : "inside";
      return { place, tones: `other-event${bad}`, label: text };
    }
    default: return describePacket(step, DATA.packets[index]);
  }
}

function describePacket(step, packet) {
  const role = packet[PACKET_ROLE];
  const other = peerOf(packet);
  const flags = packet[PACKET_FLAGS] | (other === null ? 0 : other[PACKET_FLAGS] & FLAG_RETRANSMISSION);
  const parts = [packetName(packet), `PSN ${packet[PACKET_PSN]}`];
  let tones = { response: "packet response", ack: "packet ack", cm: "packet cm", cnp: "packet cnp" }[role[0]] ?? "packet";
  if (role[0] === "nak") tones = "packet bad";
  if (flags & FLAG_RETRANSMISSION) {
    const cause = packet[PACKET_RETRY_CAUSE];
    parts.push(cause === null ? "retransmission" : `retransmission: ${shortCause(DATA.names[cause])}`);
    tones += " retry";
  }
  if (flags & FLAG_DUPLICATE) parts.push("duplicate");
  if (packet[PACKET_LENGTH] > 0) parts.push(`${grouped(packet[PACKET_LENGTH])} B`);
  if (flags & FLAG_LOST) tones += " bad";
  const dropped = packet[PACKET_DROPPED] ?? (other === null ? null : other[PACKET_DROPPED]);
  return {
    place: kindOf(step) === ARRIVED ? "arrival" : "packet",
    tones,
    label: parts.join(" · "),
    isLost: (flags & FLAG_LOST) !== 0,
    isUnknown: (flags & FLAG_UNKNOWN) !== 0,
    dropped: dropped === null ? null : DATA.names[dropped[0]],
    dropText: dropped === null ? null : DATA.names[dropped[1]],
  };
}

// A sentence about a step, for tooltips and screen readers.
function sentence(step) {
  const { label, hasDoorbell, isLost, isUnknown, dropText } = describe(step);
  const end = endOf(step);
  const device = DATA.devices[deviceOf(step)].name;
  const qp = end < 0 ? "" : `, QP ${hex(DATA.ends[end].qpn)}`;
  const delivery = isLost ? "; lost in the network" : isUnknown ? "; no arrival recorded" : dropText ? `; dropped: ${dropText}` : "";
  const verb = kindOf(step) === ARRIVED ? "; arrived" : hasDoorbell ? ", doorbell" : "";
  return `${clockTime(timeOf(step))} µs, ${device}${qp}: ${label}${verb}${delivery}`;
}

// The text that a search looks at, in lower case.
function searchText(step) {
  const parts = [describe(step).label, kindOf(step) === COMPLETED ? "cqe completion" : ""];
  const end = endOf(step);
  if (end >= 0) parts.push(`qp ${hex(DATA.ends[end].qpn)}`);
  for (const id of requestsOf(step)) {
    const request = DATA.requests[id];
    parts.push(requestName(id), `wr_id ${request[REQUEST_WR_ID]}`, `tag ${request[REQUEST_POSTED]?.[POSTED_TAG] ?? ""}`);
    const outcome = request[REQUEST_OUTCOME];
    if (outcome !== null && (kindOf(step) === COMPLETED || kindOf(step) === POLLED)) {
      parts.push(statusName(outcome[0]), `status ${outcome[0]}`, STATUSES.get(outcome[0])?.constant ?? "", STATUSES.get(outcome[0])?.explanation?.[0] ?? "");
    }
  }
  if (kindOf(step) === PACKET || kindOf(step) === ARRIVED) {
    const packet = DATA.packets[indexOf(step)];
    parts.push(`opcode ${hex(packet[PACKET_OPCODE], 2)}`, DATA.names[packet[PACKET_NAME]], `psn ${hex(packet[PACKET_PSN])}`);
    if (packet[PACKET_ROLE][0] === "nak") parts.push("NAK");
    if (packet[PACKET_FLAGS] & FLAG_LOST) parts.push("lost");
    const { dropped, dropText } = describe(step);
    if (dropped) parts.push("dropped", dropped, dropText);
  }
  if (kindOf(step) === RETRY) parts.push("retransmission");
  return parts.join(" | ").toLowerCase();
}

// Views: the queue pairs of two devices, or one connection of them.

function makeViews() {
  const groups = new Map();
  const singles = [];
  const add = (left, right, devices) => {
    const key = devices.join(" ");
    if (!groups.has(key)) groups.set(key, { devices, connections: [] });
    groups.get(key).connections.push({ left, right });
  };
  DATA.ends.forEach((end, index) => {
    const peer = end.peer < 0 ? null : DATA.ends[end.peer];
    if (peer === null || peer.peer !== index) return singles.push(index);
    const isFirst = end.device < peer.device || (end.device === peer.device && index <= end.peer);
    if (isFirst) add([index], end.peer === index ? [] : [end.peer], [end.device, peer.device]);
  });
  for (const index of singles) {
    const { device } = DATA.ends[index];
    const shared = [...groups.values()].filter(({ devices }) => devices.includes(device) && devices[1] >= 0);
    const devices = shared.length === 1 ? shared[0].devices : [device, -1];
    if (devices[0] === device) add([index], [], devices); else add([], [index], devices);
  }
  if (groups.size === 0) DATA.devices.forEach((_, device) => groups.set(String(device), { devices: [device, -1], connections: [] }));
  const views = [];
  for (const { devices, connections } of groups.values()) {
    const names = devices.filter((device, at) => device >= 0 && (at === 0 || device !== devices[0])).map((device) => DATA.devices[device].name);
    const pair = names.join(" ↔ ");
    if (connections.length !== 1) {
      const all = { left: connections.flatMap(({ left }) => left), right: connections.flatMap(({ right }) => right) };
      views.push({ label: `${pair}: all (${connections.length})`, devices, ...all, whole: true });
    }
    for (const { left, right } of connections) {
      const qps = [...left, ...right].map((end) => endName(end)).join(" ↔ ");
      views.push({ label: `${pair}: ${qps}`, devices, left, right, whole: connections.length === 1 });
    }
  }
  return views.length > 0 ? views : [{ label: "no device", devices: [-1, -1], left: [], right: [], whole: true }];
}

function endName(index) {
  const { qpn, transport } = DATA.ends[index];
  return qpn === 1 ? "GSI (connection manager)" : `${transport ?? "QP"} ${hex(qpn)}`;
}

// Returns a function that tells on which side of the view a step is.
function sides(view) {
  const byEnd = new Int8Array(DATA.ends.length).fill(HIDDEN);
  for (const end of view.right) byEnd[end] = RIGHT;
  for (const end of view.left) byEnd[end] = LEFT;
  const byDevice = (device) => (!view.whole ? HIDDEN : device === view.devices[0] ? LEFT : device === view.devices[1] ? RIGHT : HIDDEN);
  return (step) => {
    const end = endOf(step);
    if (end < 0) return byDevice(deviceOf(step));
    if (byEnd[end] !== HIDDEN || (kindOf(step) !== PACKET && kindOf(step) !== ARRIVED)) return byEnd[end];
    const other = peerOf(DATA.packets[indexOf(step)]);
    const side = other === null ? HIDDEN : byEnd[other[PACKET_END]];
    return side === HIDDEN ? HIDDEN : 1 - side;
  };
}
