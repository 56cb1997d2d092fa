// Robots that sign: each has a budget whatever address it comes from; a signature that is forged,
// expired, replayed or made for another site gives nothing, and the reason is named.

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";
import { newKey, nonce, open, pause, seconds, signers } from "./stage.js";

const KEYS = { javascript: newKey(), python: newKey() };
const BUDGET = 3;
const robot = (name, folder) => ({
  name,
  user_agent: `*${name}-bot*`,
  keys: path.join(folder, `${name}.json`),
});

const files = Object.fromEntries(
  Object.entries(KEYS).map(([name, key]) => [`${name}.json`, JSON.stringify({ keys: [key.public] })]),
);

// Opens Evenkeel with both robots and these limits, or none, and other keys of its proxy.
const stage = (limits = [], more = {}) => open(files, (folder) => ({
  signed_for: "site.test",
  robots: [robot("javascript", folder), robot("python", folder)],
  limits,
  ...more,
}));

for (const [name, sign] of Object.entries(signers)) {
  const key = KEYS[name];
  const agent = { "User-Agent": `Mozilla/5.0 (compatible; ${name}-bot/1.0)` };

  test(`signatures in ${name}`, async (t) => {
    const door = await stage();
    t.after(() => door.stop());
    const counts = async () => ({
      proven: await door.metric("evenkeel_robot_requests_total", { robot: name, proof: "signature" }),
      none: await door.metric("evenkeel_robot_requests_total", { robot: name, proof: "none" }),
    });
    // Asks, and checks that the request counts as one of the robot's, or as an impostor's with this
    // fault of the signature.
    const counted = async (headers, fault, asked = {}) => {
      const [before, faults] = [await counts(), (f) => door.metric("evenkeel_signature_faults_total", { fault: f })];
      const faultsBefore = fault ? await faults(fault) : 0;
      assert.equal(await door.ask({ ...agent, ...headers }, asked), 200);
      const after = await counts();
      const proven = fault === undefined;
      assert.deepEqual([after.proven - before.proven, after.none - before.none], proven ? [1, 0] : [0, 1]);
      if (fault) assert.equal(await faults(fault), faultsBefore + 1, fault);
    };

    await t.test("is proven", async () => counted(await sign(key, { nonce: nonce() })));
    await t.test("is proven with a signed Signature-Agent", async () => {
      await counted(await sign(key, { agent: '"https://robots.test"', nonce: nonce() }));
    });
    await t.test("is no robot without a signature", () => counted({}, null));
    await t.test("forged: the key of another", async () => {
      const other = newKey();
      const headers = await sign(other);
      const input = Object.keys(headers).find((name) => name.toLowerCase() === "signature-input");
      headers[input] = headers[input].replace(other.keyid, key.keyid);
      await counted(headers, "bad_signature");
    });
    await t.test("an unknown key", async () => counted(await sign(newKey()), "unknown_key"));
    await t.test("expired", async () => {
      await counted(await sign(key, { created: seconds() - 120, expires: seconds() - 60 }), "expired");
    });
    await t.test("not yet valid", async () => {
      await counted(await sign(key, { created: seconds() + 120 }), "not_yet_valid");
    });
    await t.test("valid for too long", async () => {
      await counted(await sign(key, { expires: seconds() + 86_500 }), "lifetime_too_long");
    });
    await t.test("replayed from elsewhere", async () => {
      const headers = await sign(key, { nonce: nonce() });
      await counted(headers);
      await counted(headers, "replayed", { from: "127.0.0.9" });
    });
    await t.test("made for another site, which sends it on", async () => {
      const url = "http://other.test/page?a=b";
      const headers = await sign(key, { url });
      await counted(headers, "bad_signature");
      await counted(headers, "wrong_authority", { url });
    });
    await t.test("an agent that is not signed", async () => {
      await counted({ ...await sign(key), "signature-agent": '"https://robots.test"' }, "missing_component");
    });
    await t.test("damaged", async () => {
      await counted({ ...await sign(key), "signature-input": "sig1=(" }, "malformed");
    });
  });
}

test("over HTTP/2 the authority of the stream is signed", async (t) => {
  const door = await stage();
  t.after(() => door.stop());
  for (const [name, sign] of Object.entries(signers)) {
    const headers = await sign(KEYS[name], { agent: '"https://robots.test"', nonce: nonce() });
    assert.equal(await door.ask_http2(headers), 200);
    assert.equal(await door.metric("evenkeel_robot_requests_total", { robot: name, proof: "signature" }), 1, name);
  }
});

test("behind a front that ends TLS, the client has signed what it sees", async (t) => {
  const door = await stage([], { trusted_proxies: ["127.0.0.2"] });
  t.after(() => door.stop());
  const proven = () => door.metric("evenkeel_robot_requests_total", { robot: "python", proof: "signature" });
  const signed = () => signers.python(KEYS.python, { url: "https://site.test/page?a=b" });
  const front = { "X-Forwarded-Proto": "https", "X-Forwarded-Host": "site.test", "X-Forwarded-For": "192.0.2.7" };
  const url = "http://inner.test/page?a=b";
  await door.ask({ ...await signed(), ...front }, { url });
  assert.equal(await proven(), 1, "a trusted front states the scheme and the host");
  await door.ask({ ...await signed(), ...front }, { url, from: "127.0.0.3" });
  assert.equal(await proven(), 1, "anyone else states nothing");
  assert.equal(await door.metric("evenkeel_signature_faults_total", { fault: "wrong_authority" }), 1);
});

test("robots come and go with the configuration, and used nonces stay used", async (t) => {
  const door = await stage();
  t.after(() => door.stop());
  const count = (robot, proof) => door.metric("evenkeel_robot_requests_total", { robot, proof });
  const headers = await signers.javascript(KEYS.javascript, { nonce: nonce() });
  await door.ask(headers);
  assert.equal(await count("javascript", "signature"), 1);
  const until = async (what, look) => {
    for (let n = 0; n < 100; n += 1) {
      if (await look()) return;
      await pause(100);
    }
    assert.fail(`not in time: ${what}`);
  };
  const claim = { "User-Agent": "new-bot" };
  const other = { name: "new", user_agent: "new-bot", ip_file: path.join(door.folder, "list") };
  await writeFile(other.ip_file, "127.0.0.5\n");
  await door.write({ signed_for: "site.test", robots: [other, robot("javascript", door.folder)] });
  await until("the new robot", async () => {
    await door.ask(claim, { from: "127.0.0.5" });
    return await count("new", "address") > 0;
  });
  await door.ask(headers);
  assert.equal(await count("javascript", "signature"), 1, "replayed after a reload");
  await door.write({});
  await until("no robots", async () => {
    const { robots } = await (await fetch(`http://${door.admin}/api/top`)).json();
    return robots.length === 0;
  });
});

test("conditions give robots a budget and impostors nothing", async (t) => {
  const door = await stage([
    { name: "robots", by: "bot", when: { bot: "*" }, rate: `${BUDGET}/h`, burst: BUDGET },
    { name: "impostors", action: "deny", when: { impostor: "*" } },
  ]);
  t.after(() => door.stop());
  const agent = { "User-Agent": "javascript-bot" };
  assert.equal(await door.ask(agent), 403, "it only claims to be the robot");
  const expired = await signers.javascript(KEYS.javascript, { created: seconds() - 120, expires: seconds() - 60 });
  assert.equal(await door.ask({ ...agent, ...expired }), 403, "its signature has expired");
  for (let n = 0; n < BUDGET + 1; n += 1) {
    const headers = { ...agent, ...await signers.javascript(KEYS.javascript) };
    assert.equal(await door.ask(headers, { from: `127.0.0.${2 + n}` }), n < BUDGET ? 200 : 429, `signed ${n}`);
  }
  assert.equal(await door.ask({}), 200, "a client that claims nothing is neither");
});

test("doctor and the interface say who claims what", async (t) => {
  const door = await stage();
  t.after(() => door.stop());
  await door.ask({ "User-Agent": "python-bot", ...await signers.javascript(KEYS.javascript) });
  await door.ask({ "User-Agent": "x python-bot" }, { from: "127.0.0.77" });
  const { robots } = await (await fetch(`http://${door.admin}/api/top`)).json();
  const [javascript, python] = robots;
  assert.deepEqual([javascript.name, javascript.by_signature, javascript.impostors, javascript.keys], ["javascript", 1, 0, 1]);
  assert.deepEqual([python.impostors, python.last_impostor], [1, "127.0.0.77"]);
  const said = door.doctor();
  assert.match(said, /^Robots:\njavascript: 1 requests proven \(1 by signature\), 0 of impostors$/m);
  assert.match(said, /^python: 0 requests proven, 1 of impostors, the last from 127\.0\.0\.77 \d+ s ago$/m);
});

test("a member of a dictionary as Signature-Agent", async (t) => {
  const door = await stage();
  t.after(() => door.stop());
  const headers = await signers.python(KEYS.python, { agent: 'py="https://robots.test";type=directory' });
  assert.equal(await door.ask(headers), 200);
  assert.equal(await door.metric("evenkeel_robot_requests_total", { robot: "python", proof: "signature" }), 1);
});

test("a robot has one budget for all of its addresses, and others do not touch it", async (t) => {
  const door = await stage([{ name: "robots", by: "bot", rate: `${BUDGET}/h`, burst: BUDGET }]);
  t.after(() => door.stop());
  const agent = { "User-Agent": "javascript-bot" };
  // Without proof a request counts with all others that are no robot.
  for (let n = 0; n < BUDGET + 2; n += 1) {
    assert.equal(await door.ask(agent, { from: "127.0.0.8" }), n < BUDGET ? 200 : 429, `unsigned ${n}`);
  }
  for (let n = 0; n < BUDGET + 2; n += 1) {
    const headers = { ...agent, ...await signers.javascript(KEYS.javascript) };
    const status = await door.ask(headers, { from: `127.0.0.${2 + n}` });
    assert.equal(status, n < BUDGET ? 200 : 429, `signed ${n}`);
  }
  const other = await signers.python(KEYS.python);
  assert.equal(await door.ask(other), 200, "another robot has a budget of its own");
});
