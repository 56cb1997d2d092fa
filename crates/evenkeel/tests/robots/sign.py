"""Signs requests with the package http-message-signatures, as a robot in Python would.

Reads one JSON object a line from standard input: `url`, `headers`, `components`, `created` and
`expires` (Unix seconds), `nonce`, `label`, `key_id`, and `pem`, the private key. Writes one line
for each: the headers with the signature.
"""

import datetime
import json
import sys
from types import SimpleNamespace

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from http_message_signatures import HTTPMessageSigner, HTTPSignatureKeyResolver, algorithms


class OneKey(HTTPSignatureKeyResolver):
    def __init__(self, pem):
        self.key = load_pem_private_key(pem.encode(), password=None)

    def resolve_private_key(self, key_id):
        return self.key


def moment(second):
    return datetime.datetime.fromtimestamp(second, datetime.timezone.utc)


for line in sys.stdin:
    asked = json.loads(line)
    message = SimpleNamespace(method="GET", url=asked["url"], headers=dict(asked["headers"]))
    signer = HTTPMessageSigner(
        signature_algorithm=algorithms.ED25519, key_resolver=OneKey(asked["pem"])
    )
    signer.sign(
        message,
        key_id=asked["key_id"],
        created=moment(asked["created"]),
        expires=moment(asked["expires"]),
        nonce=asked.get("nonce"),
        label=asked.get("label", "py"),
        tag="web-bot-auth",
        covered_component_ids=asked["components"],
    )
    print(json.dumps(message.headers), flush=True)
