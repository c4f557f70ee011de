# SPDX-License-Identifier: Apache-2.0
"""A field of a capture is declared in pmp/capture/fields.h and in stallscope/model/capture.py.

Both, and docs/capture-format.md, say the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stallscope.model import captureformat
from stallscope.model.capture import File, Label, Syscall
from stallscope.model.captureformat import Field
from tests.support.capturefields import OBJECTS, Declared, check_written, of_c, records_of_c

C = "pmp/capture/fields.h"
PYTHON = "stallscope/model/capture.py"
DOCS = "docs/capture-format.md"


def of_python() -> dict[str, dict[str, Field]]:
    records = {record: captureformat.fields(record) for record in captureformat.RECORDS}
    records["syscall"] = captureformat.struct_fields(Syscall)
    records["file"] = captureformat.struct_fields(File)
    return {record: {field.name: field for field in fields} for record, fields in records.items()}


def of_docs(text: str) -> dict[str, dict[str, tuple[Declared, str]]]:
    """Return what the tables of the docs say, and all of the row."""
    found: dict[str, dict[str, tuple[Declared, str]]] = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        record = section.split("`")[1]
        for row in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
            names, shape, meaning = (cell.strip() for cell in row.split("|", 2))
            optional = ", optional" in shape or ", absent" in shape
            base, _, null = shape.partition(",")[0].partition(" or ")
            base = base.replace("strings", "string")
            field = Declared(base, null == "null", optional)
            for name in re.findall(r"`(\w+)`", names):
                found.setdefault(record, {})[name] = (field, meaning)
    return found


def against_c(record: str, probe: dict[str, Declared], model: dict[str, Field]) -> list[str]:
    """Return what the C and the Python declaration of a record do not agree on."""
    wrong = []
    for name in probe.keys() - model.keys():
        wrong.append(f"{record}.{name} is in {C} alone: declare it in {PYTHON} and {DOCS}")
    for name, field in model.items():
        written = probe.get(name)
        what = f"{record}.{name}"
        if written is None:
            if not field.added:
                wrong.append(f"{what} is in {PYTHON} alone: add it to {C}, or mark it ADDED")
            continue
        if field.added:
            wrong.append(f"{what} is ADDED in {PYTHON}, and {C} has it: mark it OPTIONAL or not")
        if written.shape != field.shape:
            wrong.append(f"{what} is {written.shape} in {C}, and {field.shape} in {PYTHON}")
        if written.nullable and not field.nullable:
            wrong.append(f"{what} can be null in {C}, and not in {PYTHON}")
        if written.optional != field.optional and not field.added:
            wrong.append(f"{what} is optional in one of {C} and {PYTHON} (OPTIONAL) alone")
    return wrong


def against_docs(
    record: str, model: dict[str, Field], docs: dict[str, tuple[Declared, str]]
) -> list[str]:
    """Return what the docs do not have right of a record."""
    wrong = []
    for name in docs.keys() - model.keys():
        wrong.append(f"{record}.{name} is in {DOCS} alone: declare it in {PYTHON}, or drop it")
    for name, field in model.items():
        what = f"{record}.{name}"
        if name not in docs:
            wrong.append(f"{what} is missing in {DOCS}: add it to the table of `{record}`")
            continue
        said, _ = docs[name]
        null = said.nullable if field.optional else field.nullable
        meant = Declared(field.shape, null, field.optional)
        if said != meant:
            wrong.append(f"{what} in {DOCS} is {said}, and by {PYTHON} {meant}")
    return wrong


def model_and_docs() -> tuple[
    dict[str, dict[str, Field]], dict[str, dict[str, tuple[Declared, str]]]
]:
    return of_python(), of_docs((Path(__file__).parents[2] / DOCS).read_text())


@pytest.mark.needs("probe")
def test_c_and_python_declare_the_same_fields() -> None:
    probe, model = of_c(), of_python()
    assert records_of_c() == list(captureformat.RECORDS)
    wrong = [line for name in model for line in against_c(name, probe[name], model[name])]
    assert not wrong, "\n".join(sorted(wrong))
    assert probe.keys() - model.keys() == OBJECTS.keys()
    assert list(probe["labels"]) == [str(label) for label in Label]


def test_the_docs_have_the_same_fields() -> None:
    model, docs = model_and_docs()
    for name in ("syscall", "file"):  # the row of the thread's field describes it
        del model[name]
    wrong = [line for name in model for line in against_docs(name, model[name], docs.get(name, {}))]
    assert not wrong, "\n".join(sorted(wrong))
    assert docs.keys() == model.keys()


@pytest.mark.needs("probe")
def test_the_docs_name_what_is_in_an_object() -> None:
    _, docs = model_and_docs()
    for name, record in {**OBJECTS, "syscall": "thread"}.items():
        _, meaning = docs[record][name]
        missing = [key for key in of_c()[name] if f"`{key}`" not in meaning]
        assert not missing, f"{DOCS}: `{name}` of `{record}` does not name {missing}"


FIELD = Field(
    "x", "x", "int", nullable=False, optional=False, added=False, default=0, resolved=None
)
WRITTEN = Declared("int", nullable=False, optional=False)


@pytest.mark.parametrize(
    ("probe", "model", "said"),
    [
        ({"x": WRITTEN}, {}, f"is in {C} alone: declare it in {PYTHON}"),
        ({}, {"x": FIELD}, f"is in {PYTHON} alone: add it to {C}, or mark it ADDED"),
        ({"x": WRITTEN}, {"x": FIELD._replace(shape="hex")}, "is int in"),
        ({"x": WRITTEN}, {"x": FIELD._replace(optional=True)}, "optional in one"),
        ({"x": WRITTEN}, {"x": FIELD._replace(optional=True, added=True)}, "is ADDED"),
        ({"x": WRITTEN._replace(nullable=True)}, {"x": FIELD}, "can be null"),
        ({"x": WRITTEN}, {"x": FIELD}, None),
        ({}, {"x": FIELD._replace(optional=True, added=True)}, None),
    ],
)
def test_a_difference_is_said_with_what_to_do(
    probe: dict[str, Declared], model: dict[str, Field], said: str | None
) -> None:
    wrong = against_c("thread", probe, model)
    assert [said in line for line in wrong] == [True] if said is not None else not wrong


@pytest.mark.needs("probe")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"type":"note","code":"a","message":"b"}', None),
        (b'{"type":"note","code":"a"}', "note.message is missing"),
        (b'{"type":"note","code":null,"message":"b"}', "note.code is null"),
        (b'{"type":"note","code":1,"message":"b"}', "note.code is 1: no string"),
        (b'{"type":"note","code":"a","message":"b","id":1}', "which fields.h does not declare"),
        (b'{"type":"stack","id":0,"frames":[0,true]}', "no list of int"),
    ],
)
def test_what_the_probe_writes_is_compared_with_the_declaration(
    line: bytes, said: str | None
) -> None:
    if said is None:
        check_written(line)
        return
    with pytest.raises(AssertionError, match=said):
        check_written(line)


def test_a_difference_from_the_docs_is_said() -> None:
    wrong = against_docs("thread", {"x": FIELD}, {"y": (WRITTEN, "")})
    assert [line.split()[:4] for line in wrong] == [
        ["thread.y", "is", "in", DOCS],
        ["thread.x", "is", "missing", "in"],
    ]
    (line,) = against_docs("thread", {"x": FIELD}, {"x": (WRITTEN._replace(shape="hex"), "")})
    assert line.startswith(f"thread.x in {DOCS} is `hex`")
