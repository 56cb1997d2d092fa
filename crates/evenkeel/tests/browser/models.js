// A language model behind Evenkeel, and tenants that ask it: for the tests and pictures of the page
// in tokens.
//
// The model makes no text. It has two places, and each answer is a stream whose pieces come by a
// timer. What it has used stands in the last event, and its queue at /metrics, as vLLM reports it.

import { once } from "node:events";
import http from "node:http";
import { serve } from "./stage.js";

const PLACES = 2;
const PIECE_MS = 5;

export const TOKEN_LIMITS = [
  { name: "tenant", by: "header:x-tenant", share: "25%", burst: "2s" },
  { name: "minute", by: "header:x-tenant", rate: "1000000/m", unit: "tokens" },
  { name: "budget", by: "header:x-tenant", rate: "5/h", unit: "money" },
];

const event = (data) => `data: ${JSON.stringify(data)}\n\n`;

async function open_model() {
  let running = 0;
  const waiting = [];
  const next = () => {
    while (running < PLACES && waiting.length) {
      running += 1;
      waiting.shift()(() => {
        running -= 1;
        next();
      });
    }
  };
  const report = () => [["running", running], ["waiting", waiting.length]]
    .map(([state, count]) => `vllm:num_requests_${state}{model_name="m"} ${count}\n`).join("")
    + `vllm:kv_cache_usage_perc{model_name="m"} ${running / (2 * PLACES)}\n`;
  const model = http.createServer(async (request, answer) => {
    if (request.url === "/metrics") return answer.end(report());
    let body = "";
    for await (const piece of request) body += piece;
    const { max_tokens } = JSON.parse(body);
    waiting.push((done) => {
      answer.writeHead(200, { "Content-Type": "text/event-stream" });
      let made = 0;
      const timer = setInterval(() => {
        made += 1;
        answer.write(event({ choices: [{ index: 0, delta: { content: "a" } }] }));
        if (made < max_tokens) return;
        const [prompt_tokens, cached_tokens] = [Math.ceil(body.length / 4), Math.floor(body.length / 16)];
        answer.end(event({
          choices: [],
          usage: { prompt_tokens, completion_tokens: made, prompt_tokens_details: { cached_tokens } },
        }) + "data: [DONE]\n\n");
        clearInterval(timer);
      }, PIECE_MS);
      answer.on("close", () => {
        clearInterval(timer);
        done();
      });
    });
    next();
  });
  model.listen(0, "127.0.0.1");
  await once(model, "listening");
  return model;
}

// Asks again and again, as `tenant`, until stopped.
function ask_often(address, tenant, { prompt_bytes, max_tokens, connections, rest_ms }) {
  const [host, port] = address.split(":");
  const pool = new http.Agent({ keepAlive: true, maxSockets: connections });
  const body = JSON.stringify({
    model: "m", stream: true, max_tokens, messages: [{ role: "user", content: "a".repeat(prompt_bytes) }],
  });
  let going = true;
  const ask = () => new Promise((done) => {
    const headers = { "X-Tenant": tenant, "Content-Type": "application/json" };
    const options = { method: "POST", host, port, path: "/v1/chat/completions", agent: pool, headers };
    const request = http.request(options, (answer) => {
      answer.resume();
      answer.on("close", done);
    });
    request.on("error", done);
    request.end(body);
  });
  const loop = async () => {
    while (going) {
      await ask();
      if (rest_ms) await new Promise((done) => setTimeout(done, rest_ms));
    }
  };
  for (let n = 0; n < connections; n += 1) loop();
  return () => {
    going = false;
    pool.destroy();
  };
}

// A model with tenants; stopped as a whole.
export async function open_models(tokens = {}) {
  const model = await open_model();
  const server = await serve({
    // The default of the other stages, which means nothing here.
    cpus: undefined,
    preset: "openai", limits: TOKEN_LIMITS, queue: { concurrency: PLACES },
    tokens: { prices: [{ model: "*", prompt: 2.5, cached: 1.25, output: 10 }], ...tokens },
  }, { backend: `http://127.0.0.1:${model.address().port}` });
  const tenants = [];
  return {
    server,
    // A tenant that asks now and then.
    light: (name) => tenants.push(ask_often(server.proxy, name, { prompt_bytes: 400, max_tokens: 8, connections: 1, rest_ms: 200 })),
    // A tenant that asks for more than there is.
    heavy: (name) => tenants.push(ask_often(server.proxy, name, { prompt_bytes: 8_000, max_tokens: 40, connections: 12, rest_ms: 0 })),
    async stop() {
      tenants.forEach((stop) => stop());
      await server.stop();
      model.closeAllConnections();
      model.close();
    },
  };
}
