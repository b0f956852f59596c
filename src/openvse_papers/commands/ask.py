"""``openvse ask``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openvse.cli.app import app
from openvse.cli.options import Device, Json, Threads
from openvse.errors import OpenVSEError
from openvse.files import refuse_there, whole_characters, write_page


@app.command(rich_help_panel="Search")
def ask(
    model: Annotated[
        str, typer.Argument(help="A model trained to answer questions: a model folder or a hub id.")
    ],
    image: Annotated[Path, typer.Argument(help="The image file.")],
    questions: Annotated[list[str], typer.Argument(help="One or more questions, each in quotes.")],
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, help="Number of answers to print for each question.")
    ] = 5,
    html: Annotated[
        Path | None,
        typer.Option(help="File for an HTML page that shows the regions and words that the model used."),
    ] = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Answer questions about an image with the most probable answers and their probabilities."""
    from openvse.cli.json_output import print_json
    from openvse.cli.progress import note
    from openvse.media.names import names_image
    from openvse.tasks.load import load_as
    from openvse_papers.vqa.answerer import Answerer
    from openvse_papers.vqa.explain import answer_page, explain

    if named := next(filter(names_image, questions), None):
        raise OpenVSEError(
            f"{named} is an image, not a question: give one image first, then the questions about it"
        )
    if html is not None:
        refuse_there([html], "choose another --html, or delete it first")
    questions = [*map(whole_characters, questions)]
    answered = explain(load_as(Answerer, model, device=device), image, questions, top_k=top_k)
    if as_json:
        replies = [
            {
                "question": one.question,
                "unknown_words": [asdict(word) for word in one.unknown_words],
                "answers": [guess._asdict() for guess in one.guesses],
            }
            for one in answered
        ]
        print_json("ask", {"image": str(image), "questions": replies})
    else:
        for one in answered:
            typer.echo(one.question)
            for guess in one.guesses:
                typer.echo(f"  {guess.probability:.3f}  {guess.answer}")
        note("each answer has a probability of its own, so they need not add up to 1")
    if html is not None:
        write_page(html, answer_page(image, answered))
        note(f"written: {html}")
