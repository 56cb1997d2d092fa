// The official clients in Node and Python, behind one function each.
//
// A call: `sdk` (openai, anthropic, ollama), `base` (the URL of a server), `key`, `path` of the
// method (`chat.completions.create`), `body`, perhaps `retries`, and `leave`: the number of events
// after which the client disconnects. An outcome: `headers`, and an `answer` or `events` (as the
// client has read them), and perhaps an `error`: `name` and `kinds` of its class, `message`,
// `status`, `code`, `body`, `headers`.

import Anthropic from "@anthropic-ai/sdk";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import OpenAI from "openai";
import { PYTHON, script } from "./stage.js";

// `base` of each client for a server with this URL.
const bases = {
  openai: (url) => `${url}/v1`,
  anthropic: (url) => url,
  ollama: (url) => url,
};

function kinds(fault) {
  const all = [];
  for (let at = fault.constructor; at?.name; at = Object.getPrototypeOf(at)) all.push(at.name);
  return all;
}

function error(fault) {
  return {
    name: fault.constructor.name,
    kinds: kinds(fault),
    message: fault.message,
    status: fault.status,
    code: fault.code,
    body: fault.error,
    headers: Object.fromEntries(fault.headers ?? []),
  };
}

async function pieces(stream, leave, outcome) {
  outcome.events = [];
  for await (const event of stream) {
    outcome.events.push(event);
    // Leaving the loop disconnects.
    if (outcome.events.length === leave) break;
  }
}

async function node(call) {
  const outcome = {};
  try {
    const Client = { openai: OpenAI, anthropic: Anthropic }[call.sdk];
    const client = new Client({
      baseURL: bases[call.sdk](call.url), apiKey: call.key ?? "key", maxRetries: call.retries,
    });
    const names = call.path.split(".");
    const method = names.pop();
    const at = names.reduce((inner, name) => inner[name], client);
    const { data, response } = await at[method](call.body).withResponse();
    outcome.headers = Object.fromEntries(response.headers);
    if (call.body.stream) await pieces(data, call.leave, outcome);
    else outcome.answer = data;
  } catch (fault) {
    outcome.error = error(fault);
  }
  return outcome;
}

// A process that makes the calls in Python, and runs until `stop`.
export function clients() {
  let last = 0;
  const waiting = new Map();
  const child = spawn(PYTHON, [script("client.py")], { stdio: ["pipe", "pipe", "inherit"] });
  createInterface({ input: child.stdout }).on("line", (line) => {
    const { id, ...outcome } = JSON.parse(line);
    waiting.get(id)(outcome);
    waiting.delete(id);
  });
  const python = (call) => new Promise((done) => {
    last += 1;
    waiting.set(last, done);
    const base = bases[call.sdk](call.url);
    child.stdin.write(`${JSON.stringify({ key: "key", ...call, id: last, base })}\n`);
  });
  return {
    node,
    python,
    async stop() {
      child.stdin.end();
      await once(child, "exit");
    },
  };
}
