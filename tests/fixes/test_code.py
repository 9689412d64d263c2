"""What is done alike to one layer after another is written as a loop, and the loop does the same."""

from __future__ import annotations

import pytest

from leadline.fixes._engine.code import CodeBlock, layer_of, loop_code


def do(lines: list[str]) -> list[tuple[object, ...]]:
    """The calls that the code makes, in order."""
    made: list[tuple[object, ...]] = []
    exec("\n".join(lines), {"act": lambda *arguments: made.append(arguments)})
    return made


def act(path: str, *numbers: float) -> str:
    return f"act({', '.join([f'{chr(34)}{path}{chr(34)}', *map(repr, numbers)])})"


CASES = {
    "a range": [CodeBlock(f"layers.{i}", (act(f"layers.{i}.weight", 1.414),)) for i in range(60)],
    "numbers in names": [CodeBlock(f"layer_{i}", (act(f"layer_{i}.weight"),)) for i in range(60)],
    "a step": [CodeBlock(str(i), (act(f"{i}.weight", 1.0), act(f"{i}.bias", 0.0))) for i in range(0, 40, 2)],
    "another first": [CodeBlock(f"{i}", (act(f"{i}.weight", 1.0 if not i else 1.414),)) for i in range(9)],
    "numbers of their own": [CodeBlock(f"{i}", (act(f"{i}.weight", i + 0.5, 2.0),)) for i in range(9)],
    "two numbers": [CodeBlock(f"{i}", (act(f"{i}.a", i + 0.5), act(f"{i}.b", 2.0 - i))) for i in range(3)],
    "names": [
        CodeBlock(each, (act(each, 1.0), act(f"{each}.bias", 0.0))) for each in ("stem", "body", "head")
    ],
    "names and numbers": [
        CodeBlock(each, (act(each, i),)) for i, each in enumerate(("stem", "body", "head"))
    ],
    "no layer": [CodeBlock("", ("act(1)",)), CodeBlock("", ("act(1)",))],
    "one": [CodeBlock("layers.3", (act("layers.3.weight", 1.0),))],
    "leading zeros": [CodeBlock(f"0{i}", (act(f"0{i}.weight"),)) for i in range(3)],
    "braces": [CodeBlock(f"{{a}}.{i}", (act(f"{{a}}.{i}.{{b}}"),)) for i in range(3)],
    "quotes": [CodeBlock(f'a\\"{i}', (act(f'a\\"{i}.b\\"'), "act('1', 2)")) for i in range(3)],
    "falling": [CodeBlock(f"{i}", (act(f"{i}.weight"),)) for i in (3, 2, 1)],
    "prefixes": [CodeBlock(f"a.{i}", (act(f"a.{i}"), act(f"a.{i}0.b"), act(f"xa.{i}"))) for i in range(2)],
}


@pytest.mark.parametrize("blocks", CASES.values(), ids=CASES)
def test_a_loop_does_what_the_lines_do(blocks):
    assert do(list(loop_code(blocks))) == do([line for block in blocks for line in block.lines])


def test_equal_layers_are_one_loop_over_their_numbers():
    assert list(loop_code(CASES["a range"])) == [
        "for i in range(60):",
        '    act(f"layers.{i}.weight", 1.414)',
    ]


def test_a_layer_with_another_number_stands_alone():
    assert list(loop_code(CASES["another first"])) == [
        'act("0.weight", 1.0)',
        "for i in range(1, 9):",
        '    act(f"{i}.weight", 1.414)',
    ]


def test_numbers_that_differ_are_listed_and_those_that_do_not_are_not():
    lines = list(loop_code(CASES["numbers of their own"]))
    assert lines[0].startswith("for i, number in zip(range(9), (0.5, 1.5,")
    assert lines[-1] == '    act(f"{i}.weight", number, 2.0)'


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("encoder.layers.3.attention.1.weight", "encoder.layers.3"),
        ("0.weight", "0"),
        ("7", "7"),
        ("head.weight", "head.weight"),
        ("layer1.0.conv2.weight", "layer1.0"),
        ("block2b.weight", "block2b.weight"),
        ("body.layer_12.weight", "body.layer_12"),
    ],
)
def test_the_layer_of_a_path_ends_at_its_first_number(path, layer):
    assert layer_of(path) == layer
