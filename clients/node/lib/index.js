'use strict';

const { Gatekeeper } = require('./gatekeeper');
const { TurnClient, TurnError } = require('./turns');

module.exports = { Gatekeeper, TurnClient, TurnError };
