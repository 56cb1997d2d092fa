// What is asked of the server: one stream of events, and a question now and then.
//
// The stream is read with fetch, as an EventSource can show no token. When it breaks off it is
// begun again, after a pause that grows; what was missed is in the history, which is asked anew.

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

// An answer that is no success, with what it says.
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

// `wanted` is asked for a token where the server takes no order without; false: there is none.
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

// Tells of each event and of each change between live and lost, for ever. `begun` is awaited before
// the first event of each stream; `wanted` when the server wants a token.
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
