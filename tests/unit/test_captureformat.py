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
from tests.support.capturefields import OBJECTS, Declared, of_c, records_of_c

C = "pmp/capture/fields.h"
PYTHON = "stallscope/model/capture.py"
DOCS = "docs/capture-format.md"


def of_python() -> dict[str, dict[str, Field]]:
    records = {record: captureformat.fields(record) for record in captureformat.RECORDS}
    records["syscall"] = captureformat.struct_fields(Syscall)
    records["file"] = captureformat.struct_fields(File)
    return {record: {field.name: field for field in fields} for record, fields in records.items()}


def of_docs() -> dict[str, dict[str, tuple[Declared, str]]]:
    """Return what the tables of the docs say, and all of the row."""
    text = (Path(__file__).parents[2] / DOCS).read_text()
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


@pytest.mark.needs("probe")
def test_c_and_python_declare_the_same_fields() -> None:
    """One that is in Python alone is marked ADDED; what C may leave null Python may, too."""
    probe, model = of_c(), of_python()
    assert records_of_c() == list(captureformat.RECORDS)
    for record, fields in model.items():
        written = {name: (field.shape, field.optional) for name, field in probe[record].items()}
        declared = {
            name: (field.shape, field.optional) for name, field in fields.items() if not field.added
        }
        assert written == declared, f"{record} in {C} and in {PYTHON}"
        nulls = {name for name, field in probe[record].items() if field.nullable}
        assert nulls <= {name for name, field in fields.items() if field.nullable}, record
    assert probe.keys() - model.keys() == OBJECTS.keys()
    assert list(probe["labels"]) == [str(label) for label in Label]


def test_the_docs_have_the_same_fields() -> None:
    model, docs = of_python(), of_docs()
    for name in ("syscall", "file"):  # the row of the thread's field describes it
        del model[name]
    assert docs.keys() == model.keys()
    for record, fields in model.items():
        said = {name: field for name, (field, _) in docs[record].items()}
        for name, field in fields.items():
            # Of what can be absent the docs say, or do not, that it can be null.
            null = said[name].nullable if field.optional else field.nullable
            assert said.pop(name) == Declared(field.shape, null, field.optional), (record, name)
        assert not said, f"{record} in {DOCS} alone"


@pytest.mark.needs("probe")
def test_the_docs_name_what_is_in_an_object() -> None:
    docs = of_docs()
    for name, record in {**OBJECTS, "syscall": "thread"}.items():
        _, meaning = docs[record][name]
        missing = [key for key in of_c()[name] if f"`{key}`" not in meaning]
        assert not missing, f"{DOCS}: `{name}` of `{record}` does not name {missing}"
