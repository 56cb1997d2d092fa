// Refusals and failures as the official clients see them: the class of the error, its fields, and
// when they try again.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { clients } from "./clients.js";
import { OLLAMA, events, fake, piece, send } from "./fake.js";
import { evenkeel, until } from "./stage.js";

const MESSAGES = [{ role: "user", content: "hello" }];
const CHAT = { sdk: "openai", path: "chat.completions.create", body: { model: "m", messages: MESSAGES } };
const MESSAGE = {
  sdk: "anthropic", path: "messages.create", body: { model: "m", messages: MESSAGES, max_tokens: 9 },
};
const STREAM = { stream: true };

// Answers of both APIs that state this usage.
const chat_answer = (prompt_tokens) => ({
  id: "chatcmpl-1", object: "chat.completion", created: 1, model: "m",
  choices: [{ index: 0, message: { role: "assistant", content: "hi" }, finish_reason: "stop" }],
  usage: { prompt_tokens, completion_tokens: 0, total_tokens: prompt_tokens },
});
const message_answer = (input_tokens) => ({
  id: "msg_1", type: "message", role: "assistant", model: "m", content: [{ type: "text", text: "hi" }],
  stop_reason: "end_turn", stop_sequence: null, usage: { input_tokens, output_tokens: 0 },
});

// A backend whose answers state as many tokens of the prompt as `tokens()` returns.
const stating = (tokens) => ({
  "/v1/chat/completions": (_, answer) => send(answer, 200, chat_answer(tokens())),
  "/v1/messages": (_, answer) => send(answer, 200, message_answer(tokens())),
});

let sdks;
before(() => {
  sdks = clients();
});
after(() => sdks.stop());

async function stage(t, routes, proxy) {
  const backend = await fake(routes);
  const door = await evenkeel(backend.url, proxy);
  t.after(async () => {
    await door.stop();
    backend.stop();
  });
  return { door, backend };
}

const good = (outcome) => {
  assert.equal(outcome.error, undefined, JSON.stringify(outcome.error));
  return outcome;
};
const LIMIT = { limits: [{ name: "tenant", by: "ip/32", unit: "tokens", rate: "200/m" }] };
// What each client and API makes of a refusal.
const APIS = [[CHAT, "openai"], [MESSAGE, "anthropic"]];

for (const language of ["node", "python"]) {
  const ask = (call) => sdks[language](call);

  for (const [call, api] of APIS) {
    test(`${api} in ${language}: over the limit`, async (t) => {
      let tokens = 400;
      const { door, backend } = await stage(t, stating(() => tokens), LIMIT);
      good(await ask({ ...call, url: door.url }));
      await until("it is charged", async () => await door.charged() === tokens);

      const { error } = await ask({ ...call, url: door.url, retries: 0 });
      assert.equal(error?.name, "RateLimitError");
      assert.equal(error.status, 429);
      // 200 tokens too many, at 200 a minute.
      const wait = Number(error.headers["retry-after"]);
      assert.ok(wait > 30 && wait <= 60, error.headers["retry-after"]);
      assert.match(error.message, new RegExp(`Rate limit .*tenant.* reached.*in ${wait}s`));
      if (api === "openai") {
        assert.equal(error.code, "rate_limit_exceeded");
        assert.equal(error.body.type, "rate_limit_error");
      } else {
        assert.equal(error.body.type, "error");
        assert.equal(error.body.error.type, "rate_limit_error");
      }
      assert.equal(error.headers["x-ratelimit-limit-tokens"], "200");
      assert.equal(error.headers["x-ratelimit-remaining-tokens"], "0");
      assert.equal(backend.seen.length, 1, "the backend is left alone");
    });

    test(`${api} in ${language}: tries again when it is told to`, async (t) => {
      // 8 tokens too many are paid after 2.4 s. The second request may come later than that on a
      // machine that stalls; then there is nothing to see.
      let refused = 0;
      for (let n = 0; n < 5 && refused === 0; n += 1) {
        const { door, backend } = await stage(t, stating(() => 208), LIMIT);
        good(await ask({ ...call, url: door.url }));
        await until("it is charged", async () => await door.charged() === 208);
        good(await ask({ ...call, url: door.url }));
        refused = await door.metric("evenkeel_decisions_total", { verdict: "reject" });
        assert.equal(backend.seen.length, 2);
      }
      // A client that did not wait for as long as it was told to would be refused a second time.
      assert.equal(refused, 1);
    });

    test(`${api} in ${language}: the queue is full`, async (t) => {
      const held = [];
      const routes = stating(() => 1);
      for (const [path, route] of Object.entries(routes)) {
        routes[path] = (body, answer) => held.push(() => route(body, answer));
      }
      const { door } = await stage(t, routes, {
        limits: [{ ...LIMIT.limits[0], rate: "1000000/m" }], queue: { concurrency: 1, reserve: 0, len_max: 1 },
      });
      const waiting = async () => (await door.top()).load[0].crowd.waiting;
      const first = ask({ ...call, url: door.url });
      await until("the backend has it", () => held.length === 1);
      const second = ask({ ...call, url: door.url });
      await until("one waits", async () => await waiting() === 1);

      const { error } = await ask({ ...call, url: door.url, retries: 0 });
      assert.equal(error?.status, 503);
      assert.ok(error.kinds.includes("InternalServerError") || error.name === "ServiceUnavailableError", error.name);
      assert.equal(error.body.error?.type ?? error.code, api === "openai" ? "overloaded" : "overloaded_error");
      assert.ok(Number(error.headers["retry-after"]) >= 1);

      const third = ask({ ...call, url: door.url });
      await until("it is refused", () => (
        door.metric("evenkeel_decisions_total", { verdict: "reject" }).then((sum) => sum === 2)));
      const serve = setInterval(() => held.splice(0).forEach((go) => go()), 50);
      t.after(() => clearInterval(serve));
      for (const outcome of [first, second, third]) good(await outcome);
    });

    test(`${api} in ${language}: errors of the backend pass`, async (t) => {
      const refusal = api === "openai"
        ? { error: { message: "no such model", type: "invalid_request_error", param: "model", code: "x" } }
        : { type: "error", error: { type: "invalid_request_error", message: "no such model" } };
      const text = { index: 0, type: "content_block_start", content_block: { type: "text", text: "" } };
      const begin = {
        "/v1/chat/completions": (event) => {
          event(piece("hello"));
          event(piece(" there"));
        },
        "/v1/messages": (event) => {
          event({ type: "message_start", message: message_answer(5) }, "message_start");
          event(text, "content_block_start");
          event({ index: 0, type: "content_block_delta", delta: { type: "text_delta", text: "hi" } },
            "content_block_delta");
        },
      };
      const fault = api === "openai"
        ? { error: { message: "out of memory", type: "server_error", code: "oom" } }
        : { type: "error", error: { type: "overloaded_error", message: "out of memory" } };
      const ends = {
        "400": (path, answer) => send(answer, 400, refusal),
        "an error in a stream": (path, answer) => {
          const event = events(answer);
          begin[path](event);
          event(fault, api === "openai" ? undefined : "error");
          answer.end();
        },
        "a stream that breaks off": (path, answer) => {
          begin[path](events(answer));
          setTimeout(() => answer.destroy(), 50);
        },
      };
      let end;
      const routes = Object.fromEntries(Object.keys(begin).map((path) => (
        [path, (_, answer) => end(path, answer)])));
      const { door, backend } = await stage(t, routes);
      for (const [name, how] of Object.entries(ends)) {
        end = how;
        const more = name === "400" ? {} : STREAM;
        const outcome = async (url) => {
          const { error, events } = await ask({ ...call, url, retries: 0, body: { ...call.body, ...more } });
          assert.ok(error, `${name}: no error`);
          const { name: kind, message, status, code, body } = error;
          return { kind, message, status, code, body, events };
        };
        assert.deepEqual(await outcome(door.url), await outcome(backend.url), name);
      }
    });
  }

  test(`openai in ${language}: what is left is told`, async (t) => {
    const { door } = await stage(t, stating(() => 100), LIMIT);
    // The output is estimated as the least that can be.
    const call = { ...CHAT, url: door.url, body: { ...CHAT.body, max_tokens: 1 } };
    for (const spent of [0, 100]) {
      await until("it is charged", async () => await door.charged() === spent);
      const { headers } = good(await ask(call));
      assert.equal(headers["x-ratelimit-limit-tokens"], "200");
      const left = Number(headers["x-ratelimit-remaining-tokens"]);
      // Less the estimate of this request; some tokens have come back meanwhile.
      assert.ok(left >= 200 - spent - 10 && left <= 200 - spent / 2, `${left} after ${spent}`);
      const reset = Number(headers["x-ratelimit-reset-tokens"].match(/^(\d+)s$/)[1]);
      assert.ok(Math.abs(reset - (200 - left) * 60 / 200) <= 1.3, `${reset} s for ${200 - left} tokens`);
    }
  });
}

test("a backend that closes connections after streams loses no request", async (t) => {
  // A request that follows a stream on its connection is lost, as it is when it meets the end.
  const streamed = new WeakSet();
  const { door } = await stage(t, {
    "/v1/chat/completions": (_, answer) => {
      if (streamed.has(answer.socket)) return answer.socket.destroy();
      streamed.add(answer.socket);
      const event = events(answer);
      event(piece("hello"));
      event("[DONE]");
      return answer.end();
    },
  }, { queue: { concurrency: 2 } });
  const call = { ...CHAT, url: door.url, retries: 0, body: { ...CHAT.body, ...STREAM } };
  const outcomes = await Promise.all(Array.from({ length: 40 }, () => sdks.node(call)));
  outcomes.forEach((outcome) => assert.equal(good(outcome).events.length, 1));
});

test("ollama in python", async (t) => {
  const { door } = await stage(t, OLLAMA, { limits: [{ name: "tenant", by: "api-key", unit: "tokens", rate: "20/m" }] });
  const chat = { model: "m", messages: MESSAGES };
  const asked = [
    ["chat", { ...chat, stream: false }, 13, ({ answer }) => answer.message.content],
    ["chat", { ...chat, ...STREAM }, 13, ({ events }) => events.map((one) => one.message.content).join("")],
    ["generate", { model: "m", prompt: "hello" }, 13, ({ answer }) => answer.response],
    ["embed", { model: "m", input: "hello" }, 7],
  ];
  let sum = 0;
  for (const [n, [path, body, tokens, text]] of asked.entries()) {
    const outcome = good(await sdks.python({ sdk: "ollama", url: door.url, path, body, key: `${n}` }));
    if (text) assert.equal(text(outcome), "hello there");
    sum += tokens;
    await until(`${path}: ${sum} tokens are charged`, async () => Math.abs(await door.charged() - sum) < 0.01);
  }
  const ask = (key) => sdks.python({ sdk: "ollama", url: door.url, path: "chat", body: chat, key });
  for (let n = 0; n < 2; n += 1) good(await ask("greedy"));
  await until("it is charged", async () => Math.abs(await door.charged() - sum - 26) < 0.01);
  const { error } = await ask("greedy");
  assert.equal(error.name, "ResponseError");
  assert.equal(error.status, 429);
  assert.match(error.body, /^Rate limit "tenant" reached\. Please try again in \d+s\.$/);
});

test("ollama streams without being asked", async (t) => {
  const { door, backend } = await stage(t, OLLAMA);
  const ask = async (url) => {
    const body = JSON.stringify({ model: "m", messages: MESSAGES });
    const headers = { authorization: "Bearer key" };
    return (await fetch(`${url}/api/chat`, { method: "POST", body, headers })).text();
  };
  assert.equal(await ask(door.url), await ask(backend.url));
  await until("it is charged", async () => Math.abs(await door.charged() - 19) < 0.01);
});
