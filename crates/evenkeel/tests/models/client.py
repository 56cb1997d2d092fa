"""Calls language models with the official clients in Python: client.py

Reads calls from its input, one in a line, makes them at once, and prints their outcome as it comes,
one in a line. `stage.js` says what a call and an outcome are.
"""

import json
import sys
import threading

import anthropic
import ollama
import openai

PRINTING = threading.Lock()


def client(call):
    options = {"base_url": call["base"], "api_key": call["key"]}
    if call.get("retries") is not None:
        options["max_retries"] = call["retries"]
    if call["sdk"] == "anthropic":
        return anthropic.Anthropic(**options)
    return openai.OpenAI(**options)


def pieces(call, stream):
    """The events of a stream; the client disconnects after `leave` of them."""
    events = []
    for event in stream:
        events.append(plain(event))
        if len(events) == call.get("leave"):
            stream.close()
            break
    return events


def plain(answer):
    return answer.to_dict(mode="json") if hasattr(answer, "to_dict") else answer.model_dump(mode="json")


def keywords(call):
    """The body as arguments; what the method does not know goes into the body as it is."""
    body = dict(call["body"])
    unknown = {"temperature"} if call["sdk"] == "anthropic" else set()
    more = {name: body.pop(name) for name in unknown & body.keys()}
    return body | {"extra_body": more}


def ask(call):
    *resources, method = call["path"].split(".")
    at = client(call)
    for resource in resources:
        at = getattr(at, resource)
    raw = getattr(at.with_raw_response, method)(**keywords(call))
    outcome = {"headers": dict(raw.headers)}
    answer = raw.parse()
    if call["body"].get("stream"):
        try:
            return outcome | {"events": pieces(call, answer)}
        except Exception as fault:
            return outcome | {"error": error(fault)}
    return outcome | {"answer": plain(answer)}


def ask_ollama(call):
    at = ollama.Client(host=call["base"], headers={"Authorization": f"Bearer {call['key']}"})
    answer = getattr(at, call["path"])(**call["body"])
    if call["body"].get("stream"):
        return {"events": pieces(call, answer)}
    return {"answer": plain(answer)}


def error(fault):
    """What a program can find out about an error of the clients."""
    said = {"name": type(fault).__name__, "kinds": [kind.__name__ for kind in type(fault).__mro__]}
    said["message"] = str(fault)
    said["status"] = getattr(fault, "status_code", None)
    said["code"] = getattr(fault, "code", None)
    said["body"] = getattr(fault, "body", None) or getattr(fault, "error", None)
    response = getattr(fault, "response", None)
    said["headers"] = dict(response.headers) if response is not None else {}
    return said


def make(call):
    try:
        outcome = ask_ollama(call) if call["sdk"] == "ollama" else ask(call)
    except Exception as fault:
        outcome = {"error": error(fault)}
    with PRINTING:
        print(json.dumps({"id": call["id"]} | outcome), flush=True)


def main():
    for line in sys.stdin:
        threading.Thread(target=make, args=[json.loads(line)], daemon=True).start()


if __name__ == "__main__":
    main()
