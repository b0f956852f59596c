"""Options that several commands take, and readers of their values."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperOption

from openvse import __version__
from openvse.cli.progress import voice
from openvse.errors import OpenVSEError
from openvse.files import whole_characters
from openvse.halves import missing_package, training_module, usable_device
from openvse.indexing.manifest import IndexSettings
from openvse.search.provided import RERANKER
from openvse.settings import FIRST, Declared, check_settings, settings_of

if TYPE_CHECKING:
    from openvse.pipeline import Workers
    from openvse.search.provided import RanksAgain


SCHEMA = 1
"""Version of the document. It grows by one when a key changes its meaning or is removed, not when a key is added."""


def print_json(command: str, result: Mapping[str, object]) -> None:
    """Print the result of a command such as "data check" with its warnings. NaN and infinity are not written."""
    document = {
        "schema": SCHEMA,
        "openvse": __version__,
        "command": command,
        "warnings": voice.warnings,
        "result": result,
    }
    typer.echo(json_of(document, indent=2))


def json_of(content: Mapping[str, object], indent: int | None = None) -> str:
    """Return content as JSON in ASCII, without halves of characters, which names of files may hold."""
    whole = json.loads(whole_characters(json.dumps(content, allow_nan=False, ensure_ascii=False)))
    return json.dumps(whole, indent=indent)


@dataclass(frozen=True)
class Given:
    """Settings after the value of an option, such as ``MODEL,top=20,weight=0.5``."""

    given: Mapping[str, str]

    def number(self, name: str, default: int | float) -> float:
        """Return a number, or the default without one. Raise OpenVSEError if the value is no number."""
        try:
            return float(self.given.get(name, default))
        except ValueError as error:
            raise OpenVSEError(f"{name}={self.given[name]}: give a number, such as {name}={default:g}") from error


def split_settings(value: str, names: Sequence[str]) -> tuple[str, Given]:
    """Return the value of an option, and the settings after it. Other commas belong to the value."""
    given: dict[str, str] = {}
    while True:
        before, comma, last = value.rpartition(",")
        name, equals, text = last.partition("=")
        if not comma or not equals or name.strip() not in names:
            return value, Given(given)
        given.setdefault(name.strip(), text.strip())
        value = before


@dataclass(frozen=True)
class Reranking:
    """The model that reranks results, and its settings. Without features it reads the images."""

    model: str
    top: int = 20
    weight: float = 1.0  # of its score; the score of the first ranking has the rest of 1
    features: Path | None = None

    @classmethod
    def read(cls, value: str) -> Reranking:
        """Return the value of ``--rerank`` as settings. Raise OpenVSEError if one is no number."""
        model, settings = split_settings(value, ("top", "weight", "features"))
        features = settings.given.get("features")
        top, weight = settings.number("top", cls.top), settings.number("weight", cls.weight)
        if not (1 <= top < math.inf and top == int(top) and 0 <= weight <= 1):
            raise OpenVSEError(f"--rerank {value}: give a whole top of 1 or more, and a weight from 0 to 1")
        return cls(model, int(top), weight, None if features is None else Path(features))

    def load(self, device: str) -> RanksAgain:
        """Load the model, and the store that it reads, if one is named."""
        from openvse.runtime.model import MODEL_LOADER

        model = MODEL_LOADER.get()(self.model, device=device)
        return RERANKER.get()(model, top=self.top, weight=self.weight, features=self.features)


def use_threads(count: int | None) -> int | None:
    """Set the number of CPU threads that PyTorch uses. None keeps PyTorch's own choice."""
    if count is not None and not missing_package():
        training_module("torch").set_num_threads(count)
    return count


def few_first(
    *names: str,
    panels: Mapping[str, Sequence[str]] | None = None,
    bare: Mapping[str, Sequence[str]] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> type[TyperCommand]:
    """Return a command class. Its help shows the named options first, and the others in panels.

    Options that no panel of ``panels`` names are in the last panel. An option that may stand without a value is in
    ``bare``, with its values or patterns of them. It then has the first. ``renamed`` has the present names by old ones.
    """
    panel_of = {name: panel for panel, held in (panels or {}).items() for name in held}

    class FewFirst(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Give bare options their values and old ones their names, and read the arguments."""
            words = [each.partition("=") for each in args]
            args = ["".join(((renamed or {}).get(name, name), *rest)) for name, *rest in words]
            for option, all_of in (bare or {}).items():
                value = all_of[0]
                following = [*args[1:], ""]
                args = [
                    f"{one}={value}" if one == option and not any(fnmatch(after, each) for each in all_of) else one
                    for one, after in zip(args, following, strict=True)
                ]
            return super().parse_args(ctx, args)

        def get_params(self, ctx: Any) -> list[Any]:
            """Return arguments and options, each with its panel, in the order of the panels."""
            params = super().get_params(ctx)
            for each in params:
                if isinstance(each, TyperOption) and not each.rich_help_panel:
                    first = each.name in (*names, "help")
                    each.rich_help_panel = FIRST if first else panel_of.get(str(each.name), "More options")
            order = [None, FIRST, *(panels or {}), "More options"]
            return sorted(params, key=lambda each: order.index(getattr(each, "rich_help_panel", None)))

    return FewFirst


def option(
    about: str,
    *names: str,
    metavar: str | None = None,
    least: int | None = None,
    complete: Callable[..., list[str]] | None = None,
    callback: Any = None,
    shown: bool | str = True,
) -> Any:
    """Return an option and its help. ``shown`` is its default in the help, or whether that is there.

    A switch needs its name, since Typer would give it a second one, ``--no-...``.
    """
    return typer.Option(
        *names, help=about, metavar=metavar, min=least, autocompletion=complete, callback=callback, show_default=shown
    )


def argument(
    about: str, *, metavar: str | None = None, complete: Callable[..., list[str]] | None = None, shown: bool = True
) -> Any:
    """Return an argument and its help."""
    return typer.Argument(help=about, metavar=metavar, autocompletion=complete, show_default=shown)


def option_of(each: Declared, more: str = "", *, panel: str = "", callback: Any = None) -> Any:
    """Return the option of a setting. ``more`` is said of the form that its value has in the command line."""
    if each.most < math.inf:
        bounds = f" [{each.least:g}{'<' if each.above else '<='}x<={each.most:g}]"
    else:
        bounds = f" [x{'>' if each.above else '>='}{each.least:g}]" if each.least > -math.inf else ""
    # Typer gives a switch that may be left out a second name, --no-..., if no name is given.
    names = () if each.type is bool and each.default is None else each.words or (each.option,)
    return typer.Option(
        *names,
        help=" ".join(filter(None, (each.about, more, "Can be repeated." * each.is_list))),
        metavar=f"{each.metavar}{bounds}" if each.metavar else None,
        rich_help_panel=panel or each.panel or None,
        envvar=each.envvar or None,
        show_default=each.default not in (None, "", ()),
        callback=callback,
    )


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each setting of the classes of its parameters, such as ``page: Page``.

    It is handed an instance; or for a parameter ``query: Callable[..., Query]``, a function that makes one from the
    other settings. A setting among its own parameters is its own. Errors name its options: these and its keywords.
    """
    own = inspect.signature(command, eval_str=True)
    makers: dict[str, tuple[Any, Sequence[str]]] = {}
    parameters, options = list[inspect.Parameter](), dict[str, str]()
    for name, each in own.parameters.items():
        *_, kind = get_args(each.annotation) if get_origin(each.annotation) is Callable else (each.annotation,)
        if not (settings := settings_of(kind)):
            parameters.append(each)
            options |= {name: f"--{name.replace('_', '-')}"} if each.kind is each.KEYWORD_ONLY else {}
            continue
        options |= {setting.name: setting.option for setting in settings.values()}
        given = [one for one in settings.values() if one.panel is not None and one.name not in own.parameters]
        makers[name] = ((kind if kind is each.annotation else partial(partial, kind)), [one.name for one in given])
        for one in given:
            typed = list[str] if one.is_list else one.type
            default = one.default or None if one.is_list else one.default
            typed = Annotated[typed if default is not None else typed | None, option_of(one)]
            parameters.append(each.replace(name=one.name, default=default, annotation=typed))

    # A name without "_" is an ordinary word where it does not begin the message.
    first, inside = "|".join(options), "|".join(name for name in options if "_" in name)
    named = re.compile(rf"^(?:{first})\b(?==| (?:is|are|has|takes?|needs?)\b)|\b(?:{inside or '(?!)'})\b")

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            for name, (make, names) in makers.items():
                given[name] = make(**{each: value for each in names if (value := given.pop(each)) is not None})
            command(**given)
        except OpenVSEError as error:
            error.args = (named.sub(lambda found: options[found[0]], str(error)),)
            raise

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class RunSettings:
    """Where a command computes.

    Attributes:
        processes: the number of processes that share the work, through Ray. 0 uses only this one.
        cluster: the address of a running Ray cluster, or 'auto'. All its machines must see the same files. Default: the
            processes are on this machine.
        device: the device to compute on: cpu, cuda, mps, or auto for the fastest one.
        threads: the number of CPU threads of each process. Default: chosen by PyTorch, or 1 with --processes.
    """

    processes: Annotated[int, Declared(0, panel="", metavar="N")] = 0
    cluster: Annotated[str | None, Declared(panel="")] = None
    device: Annotated[str, Declared(panel="", metavar="NAME")] = "cpu"
    threads: Annotated[int | None, Declared(1, panel="", metavar="N")] = None

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "device", usable_device(self.device))

    def workers(self) -> Workers | None:
        """Return the processes that share the work, or None. Raise OpenVSEError if a cluster has no number of them."""
        if self.processes:
            from openvse.pipeline import Workers

            return Workers(self.processes, self.threads or 1, self.device, self.cluster)
        if self.cluster is not None:
            raise OpenVSEError("--cluster needs a number of processes that share the work: add --processes N")
        use_threads(self.threads)
        return None


Device: TypeAlias = Annotated[str, option_of(settings_of(RunSettings)["device"], callback=usable_device)]
RunDevice: TypeAlias = Annotated[
    str | None,
    option(
        "Device to compute on: cpu, cuda, mps, or auto for the fastest one. Default: training.device of the recipe.",
        callback=usable_device,
    ),
]
Threads: TypeAlias = Annotated[
    int | None, option("Number of CPU threads. Default: chosen by PyTorch.", least=1, callback=use_threads)
]
StartModel: TypeAlias = Annotated[
    str | None,
    option("Model to start from: a run, a model folder, a hub id, or a name from 'openvse list models'.", "--start"),
]
Rerank: TypeAlias = Annotated[
    str | None,
    option(
        "A second model that reranks the best results of each query, such as a model with score attention. "
        "MODEL,top=N,weight=W,features=STORE: it reranks the best N (default: 20), its score has the weight W "
        "(default: 1) and the first score 1 - W, and it reads a feature store instead of the images.",
        metavar="MODEL",
    ),
]
QueryBankSplit: TypeAlias = Annotated[
    str,
    option(
        "Split such as train, whose captions and images form the query bank that finds and demotes hubs. Default: "
        "the query bank of the model.",
        "--query-bank",
        metavar="SPLIT",
    ),
]
Engine: TypeAlias = Annotated[str | None, option_of(replace(settings_of(IndexSettings)["engine"], panel=""))]
Null: TypeAlias = Annotated[bool, option("Print paths that end with a zero byte each, for 'xargs -0'.", "--null", "-0")]
FeatureStorePath: TypeAlias = Annotated[
    Path, argument("The feature store: a new folder, or an existing store to add features to.")
]
Stored: TypeAlias = Annotated[Literal["float16", "float32"], option("Number type of the stored values.")]
TextFeatures: TypeAlias = Annotated[
    Path | None,
    option(
        "Store of token states ('openvse extract' of a text model), or a folder of stores, to read instead of "
        "running a frozen text model. Models without such a text model read the sentences."
    ),
]
Json: TypeAlias = Annotated[bool, option("Print the result as one JSON document instead of text.", "--json")]
Exchanged: TypeAlias = Annotated[
    bool, option("Also answer each question about another image, as a control (only questions).", "--exchanged")
]
Annotations: TypeAlias = Annotated[Path | None, option("Folder of what --protocol cxc or eccv_caption reads.")]
Every: TypeAlias = Annotated[
    bool, option("Also measure mAP@R, R-Precision, nDCG@10 and MRR, from all relevant items.", "--every")
]
ProtocolName: TypeAlias = Annotated[
    str, option("Published protocol to follow, such as coco_1k. 'openvse list protocols' lists them.")
]
Models: TypeAlias = Annotated[
    list[str], argument("Model folders, runs, hub ids, or names that 'openvse list models' lists.", metavar="MODEL...")
]
On: TypeAlias = Annotated[
    str,
    option(
        "The data: a folder, a table, or NAME:ROOT such as flickr8k:/data/f8k.", "--on", metavar="DATA", shown=False
    ),
]
Out: TypeAlias = Annotated[Path, option("The folder to write.", "--out")]
Overwrite: TypeAlias = Annotated[bool, option("Replace results, also of another model or settings.", "--overwrite")]
Split: TypeAlias = Annotated[str, option("Split: train, validation, test or all.")]
Stores: TypeAlias = Annotated[
    list[Path] | None,
    option(
        "Feature store to read instead of images: one for all models, one per model, or a folder of stores.",
        "--features",
    ),
]
Folds: TypeAlias = Annotated[int, option("Number of equal folds to average metrics over (COCO 1K: 5).", least=1)]
BatchSize: TypeAlias = Annotated[int, option("Number of images, sentences or questions in a batch.", least=1)]
ModelName: TypeAlias = Annotated[str, argument("A model folder, a hub id, or a name that 'openvse list models' lists.")]
