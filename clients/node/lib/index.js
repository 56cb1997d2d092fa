'use strict';

const { Gatekeeper } = require('./gatekeeper');

module.exports = { Gatekeeper };
