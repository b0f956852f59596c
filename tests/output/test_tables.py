"""One table in every form."""

from openvse.output.table import Table

FIGURES = Table(
    ["", "R@1", "change"],
    [["a_b|c", "2.5 ± 0.1", "-0.5 (-1.0 to +0.1)"], ["95 % interval", "2.1 to 2.9", ""], ["other", "< 1", "+1.0"]],
    strong=frozenset({0}),
    small=frozenset({1}),
    ruled=frozenset({2}),
)


def test_markdown_escapes_what_would_end_a_cell() -> None:
    assert FIGURES.to_markdown().splitlines() == [
        "|  | R@1 | change |",
        "| --- | ---: | ---: |",
        r"| **a_b\|c** | **2.5 ± 0.1** | **-0.5 (-1.0 to +0.1)** |",
        "| 95 % interval | 2.1 to 2.9 |  |",
        "| other | < 1 | +1.0 |",
    ]


def test_latex_escapes_and_rules() -> None:
    assert FIGURES.to_latex(["a note"]).splitlines() == [
        "% a note",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r" & R@1 & change \\",
        r"\midrule",
        r"a\_b|c & 2.5 $\pm$ 0.1 & $-0.5$ ($-1.0$ to $+0.1$) \\",
        r"95 \% interval & {\scriptsize 2.1--2.9} &  \\",
        r"\midrule",
        r"other & $<$ 1 & $+1.0$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_names_that_are_not_utf_8_are_shown_in_every_form() -> None:
    table = Table(["name", "value"], [["bad\udcff.png", 1.0]])
    for text in (table.to_text(), table.to_markdown(), table.to_latex(), table.to_html(), table.to_csv()):
        assert "bad\ufffd.png" in text and text.encode()


def test_html_names_rows_and_keeps_small_print() -> None:
    table = Table(["", "<b>"], [["x", "1.0\n0.5 to 1.5"]])
    page = table.to_html(lambda row, column: "good" if (row, column) == (0, 1) else "", named=True)
    assert "<tr><th></th><th>&lt;b&gt;</th></tr>" in page
    assert '<tr><th scope="row">x</th><td class="good">1.0<small>0.5 to 1.5</small></td></tr>' in page


def test_programs_get_all_digits() -> None:
    table = Table(["a", "b,c", "right"], [(1 / 3, 'say "x"', True)])
    assert table.to_csv() == f'a,"b,c",right\n{1 / 3},"say ""x""",True\n'
    assert table.to_json() == [{"a": 1 / 3, "b,c": 'say "x"', "right": True}]
    assert table.to_markdown() == '| a | b,c | right |\n| --- | ---: | ---: |\n| 0.333 | say "x" | yes |'


def test_text_puts_words_to_the_left_and_numbers_to_the_right() -> None:
    table = Table(
        ["model", "hits", "R@1", "interval"], [["a", "one", 1.5, "1.0 to 2.0"], ["bb", "two words", 10.25, ""]]
    )
    assert table.to_text().splitlines() == [
        "model  hits          R@1    interval",
        "a      one         1.500  1.0 to 2.0",
        "bb     two words  10.250",
    ]


def test_text_breaks_long_cells_and_never_numbers() -> None:
    caption = "a man in a red jacket is riding a bicycle along the river while it rains and the sun sets"
    text = Table(["model", "caption", "share of the top tenth"], [["m", caption, 0.5]]).to_text()
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) == 3 and "0.500" in text
    assert " ".join(text.split()).count("river") == 1


def test_text_is_cut_into_blocks_that_begin_with_the_first_column() -> None:
    names = [f"metric{number}" for number in range(20)]
    text = Table(["run", *names], [["one", *(float(number) for number in range(20))]]).to_text()
    blocks = text.split("\n\n")
    assert len(blocks) > 1 and all(block.startswith("run") for block in blocks)
    assert max(map(len, text.splitlines())) <= 80
    assert all(text.split().count(name) == 1 for name in names)


def test_names_of_strangers_are_neither_formulas_nor_latex() -> None:
    cells = ["=cmd|' /C calc'!A0", "@SUM(1)", "-x+1", "+3.1 to 4", "-2.5", -2.5]
    written = Table(["a"], [[each] for each in cells]).to_csv().splitlines()[1:]
    assert written == ["'=cmd|' /C calc'!A0", "'@SUM(1)", "'-x+1", "+3.1 to 4", "-2.5", "-2.5"]
    latex = Table(["a"], [["b"]]).to_latex(["a run\n\\input{/etc/passwd}"])
    assert latex.splitlines()[0].startswith("% a run \\input")
