"""The calls of the rate limit service that benchmarks make: the method, rules that never refuse, and
requests with any number of descriptors.
"""

import struct

PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RULES = """\
domain: bench
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
"""


def field(number, content):
    """A length-delimited field of protobuf; all here are shorter than 128 bytes or fit two."""
    length = len(content)
    size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return bytes([number << 3 | 2]) + size + content


def request(descriptors):
    def descriptor(n):
        entry = field(1, b"user") + field(2, b"client-%04d" % n)
        return field(2, field(1, entry))
    message = field(1, b"bench") + b"".join(descriptor(n) for n in range(descriptors))
    return b"\0" + struct.pack(">I", len(message)) + message
