// What the official clients ask a real llama.cpp through Evenkeel is answered as without it, and
// costs the tokens that the server states.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { clients } from "./clients.js";
import { cost, evenkeel, llama, until } from "./stage.js";

const MESSAGES = [{ role: "user", content: "hello how are you" }];

// More of the tokens that end a text and begin a call of a tool, where these may stand, and none of
// white space, which a model without sense would repeat for ever: `make_model.py`.
const WHITE = Object.fromEntries([9, 10, 13, 32].map((byte) => [5 + byte, -100]));
const LOGIT_BIAS = { 2: 100, 3: 50, 4: -100, ...WHITE };
const TOOL = {
  type: "function",
  function: {
    name: "weather",
    description: "the weather in a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
    },
  },
};
// Without sampling by chance.
const FIXED = { model: "tiny", temperature: 0 };
const chat_usage = ({ usage }) => ({
  prompt: usage.prompt_tokens,
  cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  output: usage.completion_tokens ?? 0,
});

// What is asked, how to find the usage and the text in the answer, and how in the events of a
// stream.
const ASKED = {
  chat: {
    sdk: "openai",
    path: "chat.completions.create",
    body: { ...FIXED, messages: MESSAGES, max_tokens: 20 },
    usage: chat_usage,
    text: (answer) => answer.choices.map(({ message }) => message.content).join(),
    streamed: (events) => events.map(({ choices: [one] }) => one?.delta.content ?? "").join(""),
  },
  "two choices": {
    sdk: "openai",
    path: "chat.completions.create",
    body: { ...FIXED, messages: MESSAGES, max_tokens: 20, n: 2 },
    usage: chat_usage,
    text: (answer) => answer.choices.map(({ message }) => message.content).join(),
    streamed: (events) => [0, 1].map((index) => events
      .filter(({ choices: [one] }) => one?.index === index)
      .map(({ choices: [one] }) => one.delta.content ?? "").join("")).join(),
  },
  "a call of a tool": {
    sdk: "openai",
    path: "chat.completions.create",
    body: {
      ...FIXED, messages: MESSAGES, max_tokens: 100, tools: [TOOL], tool_choice: "required",
      logit_bias: LOGIT_BIAS,
    },
    usage: chat_usage,
    text: ({ choices: [{ message }] }) => JSON.stringify(
      message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)])),
    streamed: (events) => {
      const calls = events.flatMap(({ choices: [one] }) => one?.delta.tool_calls ?? []);
      const all = (key) => calls.map((call) => call.function[key] ?? "").join("");
      return JSON.stringify([[all("name"), JSON.parse(all("arguments"))]]);
    },
  },
  completion: {
    sdk: "openai",
    path: "completions.create",
    body: { ...FIXED, prompt: "hello how", max_tokens: 20 },
    usage: chat_usage,
    text: ({ choices: [one] }) => one.text,
    streamed: (events) => events.map(({ choices: [one] }) => one?.text ?? "").join(""),
  },
  embeddings: {
    sdk: "openai",
    path: "embeddings.create",
    body: { model: "tiny", input: ["hello how", "the way"] },
    usage: chat_usage,
    text: ({ data }) => `${data.length} of ${data[0].embedding.length}`,
  },
  response: {
    sdk: "openai",
    path: "responses.create",
    body: { ...FIXED, input: "hello how are you", max_output_tokens: 20 },
    usage: ({ usage }) => ({
      prompt: usage.input_tokens,
      cached: usage.input_tokens_details.cached_tokens,
      output: usage.output_tokens,
    }),
    text: ({ output }) => output[0].content[0].text,
    streamed: (events) => events.filter(({ type }) => type === "response.output_text.delta")
      .map(({ delta }) => delta).join(""),
  },
  message: {
    sdk: "anthropic",
    path: "messages.create",
    body: { ...FIXED, messages: MESSAGES, max_tokens: 20 },
    usage: ({ usage }) => ({
      prompt: usage.input_tokens + usage.cache_read_input_tokens,
      cached: usage.cache_read_input_tokens,
      output: usage.output_tokens,
    }),
    text: ({ content }) => content[0].text,
    streamed: (events) => events.filter(({ type }) => type === "content_block_delta")
      .map(({ delta }) => delta.text).join(""),
  },
};

let server;
let sdks;
before(async () => {
  server = await llama();
  sdks = clients();
});
after(async () => {
  await sdks?.stop();
  await server?.stop();
});

// Evenkeel before llama.cpp; the clients of Anthropic send their key in a header of their own.
async function stage(t, proxy) {
  const door = await evenkeel(server.url, {
    limits: [{ name: "tenant", by: "ip/32", share: "25%" }], ...proxy,
  });
  t.after(() => door.stop());
  return door;
}

async function is_charged(door, tokens, what) {
  await until(`${what}: ${tokens} tokens are charged`, async () => {
    const charged = await door.charged();
    assert.ok(charged <= tokens + 0.01, `${what}: ${charged} of ${tokens}`);
    return charged > tokens - 0.01;
  });
}

// What the server says that it has worked on meanwhile.
async function worked(doing) {
  const earlier = await server.counts();
  const outcome = await doing();
  const now = await server.counts();
  const usage = Object.fromEntries(Object.keys(now).map((key) => [key, now[key] - earlier[key]]));
  return { outcome, usage };
}

function good(outcome) {
  assert.equal(outcome.error, undefined, JSON.stringify(outcome.error));
  return outcome;
}

for (const language of ["node", "python"]) {
  for (const [name, asked] of Object.entries(ASKED)) {
    const ask = (url, more = {}) => (
      sdks[language]({ ...asked, url, body: { ...asked.body, ...more } }).then(good));

    test(`${name} in ${language}`, async (t) => {
      const direct = await ask(server.url);
      await t.test("whole", async (t) => {
        const door = await stage(t);
        const { answer } = await ask(door.url);
        assert.equal(asked.text(answer), asked.text(direct.answer));
        await is_charged(door, cost(asked.usage(answer)), name);
      });
      if (!asked.streamed) return;
      await t.test("stream", async (t) => {
        const door = await stage(t);
        const { outcome: { events }, usage } = await worked(() => ask(door.url, { stream: true }));
        assert.equal(asked.streamed(events), asked.text(direct.answer));
        await is_charged(door, cost(usage), name);
        if (!asked.path.startsWith("chat")) return;
        assert.ok(events.every((event) => !event.usage), "the client has not asked for the usage");
      });
      if (!asked.path.includes("completions")) return;
      await t.test("stream with its usage", async (t) => {
        const door = await stage(t);
        const { events } = await ask(door.url, { stream: true, stream_options: { include_usage: true } });
        assert.equal(asked.streamed(events), asked.text(direct.answer));
        const stated = events.filter((event) => event.usage);
        // llama.cpp states the output of each choice for itself.
        assert.equal(stated.length, asked.body.n ?? 1);
        const output = stated.reduce((sum, event) => sum + event.usage.completion_tokens, 0);
        await is_charged(door, cost({ ...asked.usage(stated[0]), output }), name);
      });
    });
  }
}

// Without what differs between two answers to one request: identifiers and times. The `timings` of
// llama.cpp are in the event with the usage if a client asks for that, otherwise in the one before.
const normal = (text) => text
  .replaceAll(/"(id|item_id)":"([a-z]+[-_])?[A-Za-z0-9]{32}"/g, '"$1":"-"')
  .replaceAll(/"(created|created_at|completed_at)":\d+/g, '"$1":0')
  .replaceAll(/,"timings":\{[^}]*\}/g, "");

const PATHS = {
  "chat.completions.create": "/v1/chat/completions",
  "completions.create": "/v1/completions",
  "embeddings.create": "/v1/embeddings",
  "responses.create": "/v1/responses",
  "messages.create": "/v1/messages",
};

test("answers have the same bytes as without Evenkeel", async (t) => {
  const door = await stage(t);
  for (const [name, { path, body }] of Object.entries(ASKED)) {
    // The choices of one stream come in an order that nothing fixes.
    const ways = [{}, { stream: true }, { stream: true, stream_options: { include_usage: true } }];
    for (const more of ways.slice(0, body.n || name === "embeddings" ? 1 : 3)) {
      const read = async (url) => {
        const text = JSON.stringify({ ...body, ...more });
        const headers = { "content-type": "application/json", authorization: "Bearer key" };
        const answer = await fetch(url + PATHS[path], { method: "POST", body: text, headers });
        return { status: answer.status, kind: answer.headers.get("content-type"), text: normal(await answer.text()) };
      };
      // With the prompt in the cache of the server each time.
      await read(server.url);
      const direct = await read(server.url);
      assert.equal(direct.status, 200, direct.text);
      assert.deepEqual(await read(door.url), direct, `${name} ${JSON.stringify(more)}`);
    }
  }
});

test("a client that disconnects stops the model, and pays for what was made", async (t) => {
  const MOST = 15_000;
  for (const language of ["node", "python"]) {
    const door = await stage(t);
    const { output: earlier } = await server.counts();
    const left = 200;
    const { events } = good(await sdks[language]({
      ...ASKED.chat, url: door.url, leave: left,
      body: { ...ASKED.chat.body, max_tokens: MOST, stream: true },
    }));
    assert.equal(events.length, left);
    await until("the model stops", () => server.is_idle());
    await until("it is charged", async () => await door.charged() > 0);
    const made = (await server.counts()).output - earlier;
    const charged = await door.charged();
    // The prompt is estimated then.
    const prompt = 4 * JSON.stringify(ASKED.chat.body).length;
    assert.ok(made < MOST, `${language}: all ${made} were made`);
    assert.ok(charged >= 4 * (left - 2), `${language}: ${charged} for ${made}`);
    assert.ok(charged <= 4 * made + prompt, `${language}: ${charged} for ${made}`);
  }
});

test("what clients are charged together is what the server has worked", async (t) => {
  const door = await stage(t, {
    queue: { concurrency: 2 },
    limits: [{ name: "tenant", by: ["ip/32", "header:user-agent"], share: "25%" }],
  });
  // Whole answers state the tokens of one choice, and those of embeddings are not in the metrics.
  const asked = Object.entries(ASKED).filter(([name]) => !["two choices", "embeddings"].includes(name));
  const { usage } = await worked(async () => {
    const calls = ["node", "python"].flatMap((language) => asked.flatMap(([, { sdk, path, body }], n) => (
      [false, true, false, true].map((stream, m) => {
        const most = body.max_tokens === 100 ? {} : { [body.input ? "max_output_tokens" : "max_tokens"]: 5 + 11 * m + n };
        return sdks[language]({ sdk, path, url: door.url, body: { ...body, ...most, stream } });
      }))));
    (await Promise.all(calls)).forEach(good);
  });
  assert.ok(usage.output > 500, `${usage.output}`);
  await is_charged(door, cost(usage), "all");
});

test("what the server refuses is refused as without Evenkeel", async (t) => {
  const door = await stage(t);
  const long = [{ role: "user", content: "hello ".repeat(20_000) }];
  const wrong = [
    [ASKED.chat, { messages: [{ role: "user", content: [{ type: "no such type" }] }] }],
    [ASKED.chat, { messages: long }],
    [ASKED.chat, { messages: long, stream: true }],
    [ASKED.message, { messages: long }],
  ];
  for (const language of ["node", "python"]) {
    for (const [{ sdk, path, body }, more] of wrong) {
      const refused = async (url) => {
        const { error } = await sdks[language]({ sdk, path, url, body: { ...body, ...more }, retries: 0 });
        assert.equal(error?.name, "BadRequestError");
        const { message, status, code, body: said } = error;
        return { message, status, code, said };
      };
      assert.deepEqual(await refused(door.url), await refused(server.url));
    }
  }
});
