// The setting of the tests: a site, Evenkeel before it, and two robots with programs of others: one
// signs with the npm package web-bot-auth, one with the PyPI package http-message-signatures.
//
// Robots come from addresses of loopback, and ask for the host `site.test`.

import { spawn, spawnSync } from "node:child_process";
import { createHash, generateKeyPairSync, randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import http2 from "node:http2";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { signatureHeaders } from "web-bot-auth";
import { signerFromJWK } from "web-bot-auth/crypto";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const BINARY = process.env.EVENKEEL ?? path.join(ROOT, "target/debug/evenkeel");
const PYTHON = process.env.SIGNER_PYTHON ?? path.join(ROOT, "target/signer/bin/python");
const SIGN = fileURLToPath(new URL("sign.py", import.meta.url));

export const SITE = "http://site.test/page?a=b";
export const seconds = () => Math.floor(Date.now() / 1000);
export const pause = (ms) => new Promise((done) => setTimeout(done, ms));
export const nonce = () => randomBytes(64).toString("base64");

// A key pair, with its thumbprint as `keyid`.
export function newKey() {
  const { privateKey, publicKey } = generateKeyPairSync("ed25519");
  const { x } = publicKey.export({ format: "jwk" });
  const members = JSON.stringify({ crv: "Ed25519", kty: "OKP", x });
  return {
    jwk: privateKey.export({ format: "jwk" }),
    pem: privateKey.export({ format: "pem", type: "pkcs8" }),
    public: { kty: "OKP", crv: "Ed25519", x, use: "sig" },
    keyid: createHash("sha256").update(members).digest("base64url"),
  };
}

// The two signers. Each takes a key and what to change, and returns the headers of a request.
export const signers = {
  async javascript(key, { url = SITE, created = seconds(), expires = created + 60, agent, nonce } = {}) {
    const signer = await signerFromJWK(key.jwk);
    const own = agent ? { "signature-agent": agent } : {};
    const message = { method: "GET", url, headers: own };
    const [from, to] = [new Date(created * 1000), new Date(expires * 1000)];
    const signed = await signatureHeaders(message, signer, { created: from, expires: to, nonce });
    return { ...own, ...signed };
  },
  async python(key, { url = SITE, created = seconds(), expires = created + 60, agent, nonce } = {}) {
    const components = ["@authority", "@method", "@path", "@query", "@target-uri"];
    const own = agent ? { "signature-agent": agent } : {};
    // A dictionary is covered by its member, a bare string as a whole.
    if (agent) components.push(agent.startsWith('"') ? "signature-agent" : '"signature-agent";key="py"');
    const input = JSON.stringify({
      url, headers: own, components, created, expires, nonce, key_id: key.keyid, pem: key.pem,
    });
    const { status, stdout, stderr } = spawnSync(PYTHON, [SIGN], { input, encoding: "utf8" });
    if (status !== 0) throw new Error(`the signer in Python failed:\n${stderr}`);
    return JSON.parse(stdout);
  },
};

// A site and Evenkeel, with these keys in the section `proxy`. `folder` has the files of `files`.
export async function open(files, proxy) {
  const site = http.createServer((request, answer) => {
    request.resume();
    answer.end("here you are\n");
  });
  site.listen(0, "127.0.0.1");
  await once(site, "listening");
  const folder = await mkdtemp(path.join(tmpdir(), "evenkeel-"));
  for (const [name, text] of Object.entries(files)) await writeFile(path.join(folder, name), text);
  const file = path.join(folder, "evenkeel.yaml");
  const backend = `http://127.0.0.1:${site.address().port}`;
  const write = (keys) => writeFile(file, JSON.stringify({
    log: { format: "json" },
    admin: { listen: "127.0.0.1:0" },
    proxy: { listen: "127.0.0.1:0", backend, cpus: 2, ...keys },
  }));
  await write(proxy(folder));
  const child = spawn(BINARY, ["serve", "--config", file], { stdio: ["ignore", "inherit", "pipe"] });
  const lines = [];
  const opened = new Promise((done, failed) => {
    child.on("error", failed);
    child.on("exit", (code) => failed(new Error(`it ended with ${code}:\n${lines.join("\n")}`)));
    createInterface({ input: child.stderr }).on("line", (line) => {
      lines.push(line);
      const { fields } = JSON.parse(line);
      if (fields?.message !== "proxy open") return;
      const first = (list) => list.slice(1, -1).split(",")[0].trim();
      done({ proxy: first(fields.listen), admin: first(fields.admin) });
    });
  });
  const addresses = await opened;
  return {
    ...addresses,
    folder,
    // Replaces the keys of the section `proxy`; Evenkeel sees it within seconds.
    write,
    // Asks for `url` with these headers from an address; returns the status.
    ask(headers, { from = "127.0.0.2", url = SITE } = {}) {
      const [host, port] = addresses.proxy.split(":");
      const { host: authority, pathname, search } = new URL(url);
      return new Promise((done, failed) => {
        const asked = http.get({
          host, port, path: pathname + search, localAddress: from, agent: false,
          headers: { Host: authority, "User-Agent": "TestBot/1.0", ...headers },
        }, (answer) => {
          answer.resume();
          answer.on("end", () => done(answer.statusCode));
        });
        asked.on("error", failed);
      });
    },
    // As `ask`, over HTTP/2.
    async ask_http2(headers, { url = SITE } = {}) {
      const { host: authority, pathname, search } = new URL(url);
      const session = http2.connect(`http://${addresses.proxy}`);
      const stream = session.request({
        ":path": pathname + search, ":authority": authority, "user-agent": "TestBot/1.0",
        ...Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value])),
      });
      const [answer] = await once(stream, "response");
      stream.resume();
      await once(stream, "close");
      session.close();
      return answer[":status"];
    },
    // The sum of a metric over the series that have all of `labels`.
    async metric(name, labels) {
      const text = await (await fetch(`http://${addresses.admin}/metrics`)).text();
      const has = ([key, value]) => (line) => line.includes(`${key}="${value}"`);
      let lines = text.split("\n").filter((line) => line.startsWith(`${name}{`));
      for (const label of Object.entries(labels)) lines = lines.filter(has(label));
      return lines.reduce((sum, line) => sum + Number(line.split(" ").pop()), 0);
    },
    doctor() {
      return spawnSync(BINARY, ["clients", "--admin", addresses.admin], { encoding: "utf8" }).stdout;
    },
    async stop() {
      if (child.exitCode == null) {
        child.kill("SIGKILL");
        await once(child, "exit");
      }
      site.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
