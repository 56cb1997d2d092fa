// A backend for what llama.cpp does not do: Ollama's API, and answers that fail or wait as a test
// says. Its answers have the form that the documents of these APIs give.

import { once } from "node:events";
import http from "node:http";

const JSON_KIND = { "content-type": "application/json" };

// Serves with `routes`: a path to a function of the request's body (as JSON) and the answer.
export async function fake(routes) {
  const seen = [];
  const server = http.createServer(async (request, answer) => {
    let text = "";
    for await (const piece of request) text += piece;
    // Evenkeel looks for the metrics of an engine.
    if (request.url === "/metrics") return send(answer, 404, {});
    seen.push({ path: request.url, text, headers: request.headers });
    const route = routes[request.url];
    if (route) route(JSON.parse(text), answer);
    else send(answer, 404, { error: "no such path" });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    seen,
    stop() {
      server.closeAllConnections();
      server.close();
    },
  };
}

export function send(answer, status, body) {
  answer.writeHead(status, JSON_KIND);
  answer.end(JSON.stringify(body));
}

// A piece of a chat's stream.
export const piece = (content) => ({
  id: "chatcmpl-1",
  object: "chat.completion.chunk",
  created: 1,
  model: "m",
  choices: [{ index: 0, delta: { content }, finish_reason: null }],
});

// Begins a stream of events. `event(data, name)` sends one.
export function events(answer) {
  answer.writeHead(200, { "content-type": "text/event-stream" });
  return (data, name) => {
    const head = name ? `event: ${name}\n` : "";
    answer.write(`${head}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`);
  };
}

// Ollama's own API, with a model that says two words; it states 11 tokens of the prompt, and 2 of
// the output.
const TIMES = { total_duration: 9, load_duration: 1, prompt_eval_duration: 3, eval_duration: 5 };
const STATED = { prompt_eval_count: 11, eval_count: 2 };

function ollama_answer(wrap) {
  const line = (content, more) => (
    { model: "m", created_at: "2026-01-01T00:00:00Z", ...wrap(content), ...more });
  const end = { done: true, done_reason: "stop", ...TIMES, ...STATED };
  return ({ stream }, answer) => {
    // Without `stream` Ollama streams.
    if (stream === false) return send(answer, 200, line("hello there", end));
    answer.writeHead(200, { "content-type": "application/x-ndjson" });
    for (const word of ["hello", " there"]) {
      answer.write(`${JSON.stringify(line(word, { done: false }))}\n`);
    }
    return answer.end(`${JSON.stringify(line("", end))}\n`);
  };
}

export const OLLAMA = {
  "/api/chat": ollama_answer((content) => ({ message: { role: "assistant", content } })),
  "/api/generate": ollama_answer((response) => ({ response })),
  "/api/embed": (body, answer) => send(answer, 200, {
    model: "m", embeddings: [[0.25, 0.5]], total_duration: 9, load_duration: 1, prompt_eval_count: 7,
  }),
};
