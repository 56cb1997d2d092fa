// Requests to the server: one stream of events, and single requests.
//
// The stream is read with fetch, because an EventSource cannot send a token. If it ends, it is
// opened again after a growing pause. The history, which is requested again, has the missed events.

const SILENCE_MS = 6_000;
const PAUSES_MS = [500, 1_000, 2_000, 5_000];

let token = sessionStorage.getItem("token") ?? "";

export function keep(given) {
  token = given;
  sessionStorage.setItem("token", given);
}

function headers(more = {}) {
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

// A response with an error status, with its text.
export class Refused extends Error {
  constructor(status, text) {
    super(text.trim() || `status ${status}`);
    this.status = status;
  }
}

async function checked(answer) {
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer;
}

export async function get(path) {
  const answer = await checked(await fetch(path, { headers: headers(), cache: "no-store" }));
  return answer.json();
}

// Calls `wanted` for a token if the server requires one; false: the operator gave none.
export async function order(what, wanted) {
  for (;;) {
    const answer = await fetch("/api/overrides", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify(what),
    });
    if (answer.status !== 401 || !(await wanted())) return (await checked(answer)).json();
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Reports each event, and each change between live and lost, without end. Awaits `begun` before the
// first event of each stream, and `wanted` when the server requires a token.
export async function watch({ event, lost, begun, wanted }) {
  for (let failures = 0; ; failures += 1) {
    try {
      await begun();
      await stream((data) => {
        failures = 0;
        event(data);
      });
      throw new Error("the stream ended");
    } catch (why) {
      if (why instanceof Refused && why.status === 401) {
        await wanted();
        continue;
      }
      lost(why);
    }
    await pause(PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)]);
  }
}

async function stream(event) {
  const stop = new AbortController();
  let silence = setTimeout(() => stop.abort(), SILENCE_MS);
  try {
    const asked = { headers: headers(), cache: "no-store", signal: stop.signal };
    const answer = await checked(await fetch("/api/events", asked));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort(), SILENCE_MS);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: "));
        if (data.length) event(JSON.parse(data.map((line) => line.slice(6)).join("\n")));
      }
    }
  } finally {
    clearTimeout(silence);
  }
}
