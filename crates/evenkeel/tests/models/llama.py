"""A real llama.cpp server for the tests: llama.py MODEL

Prints its address, and serves until its input ends. One slot of four gets 16384 tokens. The log of
llama.cpp goes to the standard error.
"""

import sys

import xllamacpp


def main(model):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"tiny"}
    params.port = 0
    params.n_ctx = 65_536
    params.n_parallel = 4
    params.cpuparams.n_threads = 1
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.endpoint_metrics = True
    params.ui = False
    params.warmup = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
