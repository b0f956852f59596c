"""The tables of ``docs/reference/rest.md``: the REST interface, from its schema."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from fastapi import FastAPI

from openvse.search import Hit
from openvse.serving.routes import api, plain
from openvse.serving.schemas import FOUND_EXAMPLE, HIT_EXAMPLE

OF_HIT = {
    "fit": "`likely`, `possible` or `unlikely`, or empty if there is no probability.",
    "was": "the rank before the second model, or null.",
    "text": "the lines that were read in the image and have words of the sentence, at most three, each with `text`, "
    "`confidence`, `box` and `page`.",
    "thumbnail": "the address of a small picture.",
    "title": "the title as the page shows it: a caption, a title, another text of the metadata, or the file's name.",
    "probability": "the probability that the image is relevant, or null without one.",
}
"""What is said of a field where the reply differs from ``Hit``."""

OF_REPLY = {
    "hits": "the hits, best first.",
    "searched": "the number of items that fulfil the conditions.",
    "more": "whether there are further hits.",
    "fits": "the lowest score of each word (`likely`, `possible`), or null if no score reaches it.",
    "unknown_words": "words that the model has not learned, each with `word` and `read_as`.",
    "warnings": "what a reader of the hits should know, one line each.",
}


def described() -> dict[str, Any]:
    """Return the description of the interface."""
    app = FastAPI()
    app.include_router(api)
    app.include_router(plain)
    return app.openapi()


def type_of(schema: dict[str, Any]) -> str:
    """Return a type as a reader of JSON knows it. Null stands for a field that is left out."""
    if "anyOf" in schema:
        return " or ".join(type_of(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema['items'])}s"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return names.get(schema.get("type", ""), "object")


def table(columns: str, rows: list[str]) -> str:
    """Return a table of Markdown."""
    return f"{columns}\n|{'---|' * (columns.count('|') - 1)}\n" + "\n".join(rows) + "\n"


def addresses() -> str:
    """Return a row for each address."""
    rows = []
    for path, methods in described()["paths"].items():
        for method, operation in methods.items():
            about = operation["description"].replace("``", "`")
            asked = [f"`{each['name']}`" for each in operation.get("parameters", ()) if each["in"] == "query"]
            rows.append(f"| `{method.upper()} {path}` | {about} | {', '.join(asked)} |")
    return table("| address | what it does | fields |", rows)


def request() -> str:
    """Return a row for each field of a search."""
    rows = []
    for each in described()["paths"]["/api/search"]["get"]["parameters"]:
        schema = each["schema"]
        default = schema.get("default")
        written = f"`{json.dumps(default)}`" if default not in (None, "", []) else ""
        about = (each.get("description") or "").replace("|", "\\|")
        rows.append(f"| `{each['name']}` | {type_of(schema)} | {written} | {about} |")
    return table("| field | type | default | meaning |", rows)


def hit() -> str:
    """Return a row for each field of a hit, with the sentences of the class ``Hit``."""
    _, _, entries = inspect.cleandoc(Hit.__doc__ or "").partition("Attributes:\n")
    own = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", entries, flags=re.M | re.S)
    sentences = {name: " ".join(text.split()).replace("``", "`") for name, text in own} | OF_HIT
    return table("| field | meaning |", [f"| `{name}` | {sentences[name]} |" for name in HIT_EXAMPLE])


def reply() -> str:
    """Return a row for each field of a reply."""
    return table("| field | meaning |", [f"| `{name}` | {OF_REPLY[name]} |" for name in FOUND_EXAMPLE])
