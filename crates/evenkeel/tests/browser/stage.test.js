// The setting of the tests leaves nothing behind, however a script that uses it ends.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { until } from "./stage.js";

const SCRIPT = `
  import { open } from "./stage.js";
  const { server } = await open();
  console.log(JSON.stringify({ admin: server.admin, folder: server.folder }));
  throw new Error("on purpose");
`;

test("a script that throws leaves no server and no folder", async () => {
  const cwd = fileURLToPath(new URL(".", import.meta.url));
  const printed = await new Promise((done) => {
    execFile(process.execPath, ["--input-type=module", "--eval", SCRIPT], { cwd, timeout: 60_000 }, (error, stdout, stderr) => {
      assert.match(stderr, /on purpose/);
      done(stdout);
    });
  });
  const { admin, folder } = JSON.parse(printed);
  const answers = () => fetch(`http://${admin}/healthz`).then(() => true, () => false);
  await until("the server has ended", async () => !(await answers()), 10);
  assert.ok(!existsSync(folder), `${folder} is gone`);
});
