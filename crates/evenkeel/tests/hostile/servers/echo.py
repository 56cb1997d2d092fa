"""Answers with the tokens of the path and of the header; where it reads the body, if all of it
belongs to them."""

import time


def answer(environ, start_response):
    way, _, path = environ["PATH_INFO"].lstrip("/").rpartition("/")
    token = environ.get("HTTP_X_TOKEN", "none")
    said = f"{path};{token};".encode()
    status = "200 Said"
    if way == "read":
        body = environ["wsgi.input"].read().decode("latin-1")
        if not (f"{token}," * (len(body) // len(token) + 1)).startswith(body):
            status = "599 Strange"
    start_response(status, [("x-token", token), ("content-length", str(len(said)))])
    if environ["REQUEST_METHOD"] == "HEAD":
        # gunicorn sends what it is given.
        return
    if way == "head":
        yield said[:3]
        time.sleep(0.005)
        said = said[3:]
    yield said
