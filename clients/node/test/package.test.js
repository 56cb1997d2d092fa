// What is in the package: the files that it names, and the licences of the whole project. npm packs
// no symbolic links, so the licences here are copies.

'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const test = require('node:test');
const manifest = require('../package.json');

const PACKAGE = path.join(__dirname, '..');
const PROJECT = path.join(PACKAGE, '..', '..');

test('every file that is to be packed exists, and is no link', () => {
  for (const name of manifest.files) {
    const entry = fs.lstatSync(path.join(PACKAGE, name));
    assert.ok(entry.isFile() || entry.isDirectory(), name);
  }
});

test('the licences are those of the project', () => {
  for (const name of ['LICENSE-MIT', 'LICENSE-APACHE']) {
    assert.ok(manifest.files.includes(name), name);
    const text = (folder) => fs.readFileSync(path.join(folder, name), 'utf8');
    assert.equal(text(PACKAGE), text(PROJECT), name);
  }
});
