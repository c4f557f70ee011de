# SPDX-License-Identifier: Apache-2.0
"""Stalls without a name: their shapes, which are alike, and what they are called."""

from __future__ import annotations

import random

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.fleet.analysis import facts_of, functions_of
from stallscope.fleet.likeness import (
    MAX_FUNCTIONS,
    THRESHOLD,
    Shape,
    group,
    likeness,
    marked,
    name_of,
    names_of,
    shape_of,
    united,
    weights,
)
from tests.bench.labelled import own
from tests.bench.likeness import judged, shaped
from tests.unit.captures import convoy

SEED = 20261129


def shape(*functions: str, first_ms: int = 0, **more: object) -> Shape:
    value = Shape(shape=shape_of(functions), functions=functions, first_ms=first_ms)
    return msgspec.structs.replace(value, **more)


@pytest.mark.parametrize(
    ("frames", "wanted"),
    [
        (("__lll_lock_wait", "pthread_mutex_lock", "open_table"), ("open_table",)),
        (("select", "_int_malloc", "free", "poll", "vio_read"), ("vio_read",)),
        (("futex_wait_queue", "syscall", "row_search_mvcc"), ("row_search_mvcc",)),
        (("0x55a245cb9468", "mysqld+0x1234", "??", "ha_commit_trans"), ("ha_commit_trans",)),
        (("std::condition_variable::wait", "Gtid_state::wait"), ("Gtid_state::wait",)),
        (("trx_commit.isra.0", "log_write_up_to.cold"), ("trx_commit", "log_write_up_to")),
        (("open_table(THD*, TABLE_LIST*)",), ("open_table",)),
        (("buf_page<Page, 4>::get", "buf_page<Page, 8>::get"), ("buf_page::get",)),
        (("mysql_update", "do_command", "handle_connection", "start_thread", "clone3"),
         ("mysql_update",)),
        (("[Waiting for table]",), ()),
    ],
)  # fmt: skip
def test_only_functions_of_the_server_are_in_a_shape(
    frames: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    assert functions_of(frames) == wanted


def test_functions_say_whose_they_are() -> None:
    assert marked([("a", "b"), ("b", "c")], ("a",)) == ("b:a", "w:a", "w:b", "w:c")
    many = [tuple(f"f{number}" for number in range(500))]
    assert len(marked(many, ("x",))) == MAX_FUNCTIONS
    assert "b:x" in marked(many, ("x",))


def test_a_shape_is_of_the_set_of_functions() -> None:
    assert shape_of(("a", "b")) == shape_of(("b", "a", "a"))
    assert shape_of(("a", "b")) != shape_of(("ab",)) != shape_of(("a", "c"))
    assert len(shape_of(("a",))) == 16
    assert shape_of(()) == ""


def test_rare_functions_say_more() -> None:
    one, other, third = shape("w:x", "w:all"), shape("w:x", "w:y"), shape("w:z", "w:all")
    weight = weights([one, other, third, shape("w:all", "w:q"), shape("w:all")])
    assert weight["w:x"] > weight["w:all"]
    assert likeness(one.functions, other.functions, weight) > likeness(
        one.functions, third.functions, weight
    )
    assert likeness((), (), weight) == 0.0
    assert likeness(one.functions, one.functions, weight) == pytest.approx(1.0)


def test_the_first_that_was_seen_gives_the_name() -> None:
    late = shape("w:a", "w:b", "w:c", "w:e", first_ms=9, last_ms=9, hosts=frozenset({"h2"}))
    first = shape("w:a", "w:b", "w:c", "w:d", first_ms=3, last_ms=4, hosts=frozenset({"h1"}))
    apart = shape("w:q", "w:r", first_ms=1, last_ms=1)
    found = group([late, apart, first])
    assert [one.name for one in found] == [name_of(first.shape), name_of(apart.shape)]
    assert found[0].shapes == (first, late)
    assert (found[0].leader, found[0].incidents) == (first, 2)
    assert found[0].hosts == {"h1", "h2"}


def test_groups_do_not_depend_on_the_order() -> None:
    rng = random.Random(SEED)
    names = [f"w:{number}" for number in range(12)]
    shapes = {
        one.shape: one
        for number in range(60)
        if (one := shape(*sorted(rng.sample(names, 4)), first_ms=number))
    }
    wanted = group(list(shapes.values()))
    for _ in range(5):
        mixed = rng.sample(list(shapes.values()), len(shapes))
        assert group(mixed) == wanted, f"seed {SEED}"


def test_all_pairs_that_are_alike_are_found() -> None:
    rng = random.Random(SEED)
    names = [f"w:{number}" for number in range(10)]
    drawn = [shape(*sorted(rng.sample(names, 3)), first_ms=number) for number in range(40)]
    shapes = list({one.shape: one for one in drawn}.values())
    weight = weights(shapes)
    pairs = [
        (one.shape, other.shape)
        for one in shapes
        for other in shapes
        if likeness(one.functions, other.functions, weight) >= THRESHOLD
    ]
    assert group(shapes) == united(shapes, pairs), f"seed {SEED}"


def test_pairs_of_shapes_that_are_not_there_are_skipped() -> None:
    one = shape("w:a")
    assert [each.shapes for each in united([one], [(one.shape, "gone"), ("no", "where")])] == [
        (one,)
    ]


def test_names_are_longer_where_they_collide() -> None:
    shapes = ["3f2a000000000000", "3f2a111111111111", "aaaa000000000000"]
    assert list(names_of(shapes).values()) == [
        "unknown-3f2a0000",
        "unknown-3f2a1111",
        "unknown-aaaa",
    ]


def test_a_stall_with_a_name_has_no_shape() -> None:
    signatures = catalog.load()
    facts = facts_of(engine.analyze(convoy(), signatures))
    assert (facts.shape, facts.shape_functions) == ("", ())


@pytest.mark.large
def test_stalls_without_their_signatures_are_grouped_by_what_they_are() -> None:
    dumps = list(shaped(own(), catalog.load()))
    assert len(dumps) > 200
    pairs, wrong = judged(dumps)
    assert pairs["tool"].recall >= 0.95
    assert pairs["near"].recall >= 0.9
    assert pairs["near"].precision >= 0.95
    assert pairs["all"].precision >= 0.8, wrong
    assert pairs["all"].recall >= 0.65
    # A threshold that takes all for one, or nothing, is worse.
    assert judged(dumps, 0.05)[0]["all"].precision < 0.5
    assert judged(dumps, 0.99)[0]["all"].recall < pairs["all"].recall
