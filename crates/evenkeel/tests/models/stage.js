// The setting of the tests: a backend (a real llama.cpp, or `fake.js`), Evenkeel before it, and the
// official clients of language models in Node and Python.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const BINARY = process.env.EVENKEEL ?? path.join(ROOT, "target/debug/evenkeel");
export const PYTHON = process.env.MODELS_PYTHON ?? path.join(ROOT, "target/models/bin/python");
export const script = (name) => fileURLToPath(new URL(name, import.meta.url));
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Waits until `look` returns something that is true, and returns it.
export async function until(what, look) {
  for (let n = 0; n < 200; n += 1) {
    const seen = await look();
    if (seen) return seen;
    await pause(50);
  }
  return Promise.reject(new Error(`not in time: ${what}`));
}

// Starts a program, and passes each line of its output to `read` until that returns something.
async function start(program, args, stream, read) {
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "pipe"] });
  const lines = [];
  const opened = new Promise((done, failed) => {
    child.on("error", failed);
    child.on("exit", (code) => failed(new Error(`${program} ended with ${code}:\n${lines.join("\n")}`)));
    for (const name of ["stdout", "stderr"]) {
      createInterface({ input: child[name] }).on("line", (line) => {
        lines.push(line);
        const found = name === stream && read(line);
        if (found) done(found);
      });
    }
  });
  return {
    opened: await opened,
    lines,
    async stop() {
      if (child.exitCode == null) {
        child.kill("SIGKILL");
        await once(child, "exit");
      }
    },
  };
}

// A real llama.cpp server with a tiny random model.
export async function llama() {
  const folder = await mkdtemp(path.join(tmpdir(), "evenkeel-model-"));
  const model = path.join(folder, "tiny.gguf");
  const { status, stderr } = spawnSync(PYTHON, [script("make_model.py"), model], { encoding: "utf8" });
  if (status !== 0) throw new Error(`no model was made:\n${stderr}`);
  const server = await start(PYTHON, [script("llama.py"), model], "stdout", (line) => line);
  const url = server.opened;
  return {
    url,
    // Tokens that the server has worked on since its start: of prompts, those of them that were in
    // its cache, and of outputs.
    async counts() {
      const text = await (await fetch(`${url}/metrics`)).text();
      const value = (name) => Number(text.match(new RegExp(`^llamacpp:${name} (\\S+)$`, "m"))[1]);
      const cached = value("prompt_tokens_cached_total");
      const prompt = value("prompt_tokens_total") + cached;
      return { prompt, cached, output: value("tokens_predicted_total") };
    },
    async is_idle() {
      const slots = await (await fetch(`${url}/slots`)).json();
      return slots.every((slot) => !slot.is_processing);
    },
    log: server.lines,
    async stop() {
      await server.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

// Evenkeel before `backend`, with these keys in the section `proxy`.
export async function evenkeel(backend, proxy = {}) {
  const folder = await mkdtemp(path.join(tmpdir(), "evenkeel-"));
  const file = path.join(folder, "evenkeel.yaml");
  await writeFile(file, JSON.stringify({
    log: { format: "json" },
    admin: { listen: "127.0.0.1:0" },
    proxy: { listen: "127.0.0.1:0", backend, preset: "openai", queue: { concurrency: 4 }, ...proxy },
  }));
  const server = await start(BINARY, ["serve", "--config", file], "stderr", (line) => {
    const { fields } = JSON.parse(line);
    return fields?.message === "proxy open" && fields;
  });
  const first = (list) => `http://${list.slice(1, -1).split(",")[0].trim()}`;
  const admin = first(server.opened.admin);
  return {
    url: first(server.opened.listen),
    // What all clients of a limit have been charged, in tokens.
    async charged(limit = "tenant") {
      const { limits } = await (await fetch(`${admin}/api/top?limit=${limit}`)).json();
      return 1000 * limits[0].rows.reduce((sum, row) => sum + row.cpu_total, 0);
    },
    async top() {
      return (await fetch(`${admin}/api/top`)).json();
    },
    // The sum of a metric over the series that have all of `labels`.
    async metric(name, labels = {}) {
      const text = await (await fetch(`${admin}/metrics`)).text();
      let lines = text.split("\n").filter((line) => new RegExp(`^${name}[{ ]`).test(line));
      for (const [key, value] of Object.entries(labels)) {
        lines = lines.filter((line) => line.includes(`${key}="${value}"`));
      }
      return lines.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
    },
    async stop() {
      await server.stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

// What these tokens cost with the default weights.
export const cost = ({ prompt, cached = 0, output }) => prompt - cached + 0.25 * cached + 4 * output;
