# SPDX-License-Identifier: Apache-2.0
"""A disk that loses what was not synced, made from a record of what a program did to its files.

The record is taken by standing in for the functions of ``os`` that change files. What a power loss
at some moment leaves is more than one state, since a file system may have written by itself what
nobody asked it to sync: names that were changed are kept or lost, a folder's changes always in
their order; of the contents of a file that were not synced all, half, none or zeros.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

__all__ = ["Image", "Recorder"]

Names = dict[str, int]
Change = tuple[int, str, int | None]
"""(folder, name, file or folder that has this name from now on)"""


class Image(msgspec.Struct, frozen=True):
    """What is on a disk: folders and files below its root, by path."""

    folders: frozenset[str]
    files: frozenset[tuple[str, bytes]]

    def restore(self, root: Path) -> None:
        for folder in sorted(self.folders):
            (root / folder).mkdir(mode=0o700, exist_ok=True)
        for name, data in self.files:
            (root / name).write_bytes(data)


class Recorder:
    """Follow all changes below ``root``; ``instants`` grows by the images of each instant."""

    def __init__(self, root: Path, chance: random.Random, said: Callable[[], int]) -> None:
        self.root = root
        self.instants: list[tuple[int, set[Image]]] = []
        """(how much was said, the images that a power loss then can leave)"""
        self.synced = 0
        self._chance = chance
        self._said = said
        self._nodes: dict[int, int] = {self._inode(str(root)): 0}
        self._last_node = 0
        self._folders: dict[int, Names] = {0: {}}
        self._durable_folders: dict[int, Names] = {0: {}}
        self._pending: list[Change] = []
        self._contents: dict[int, bytes] = {}
        self._durable_contents: dict[int, bytes] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Stand in for the functions of os while the body runs."""
        with mock.patch.multiple(
            os,
            open=self._opens(os.open),
            mkdir=self._makes(os.mkdir),
            link=self._links(os.link),
            rename=self._renames(os.rename),
            replace=self._renames(os.replace),
            unlink=self._removes(os.unlink),
            rmdir=self._removes(os.rmdir),
            write=self._writes(os.write),
            ftruncate=self._writes(os.ftruncate),
            fsync=self._syncs(os.fsync),
            fdatasync=self._syncs(os.fdatasync),
        ):
            yield

    def assert_nothing_was_missed(self) -> None:
        """Assert that the record ends with what lies on the real disk."""
        folders, files = set(), set()
        for folder, below, names in os.walk(self.root):
            at = os.path.relpath(folder, self.root)
            folders |= {os.path.normpath(os.path.join(at, name)) for name in below}
            for name in names:
                path = os.path.normpath(os.path.join(at, name))
                files.add((path, (self.root / path).read_bytes()))
        self._read_contents()
        assert self._image(self._folders, self._contents) == Image(
            frozenset(folders), frozenset(files)
        )

    # What a program does.

    def _opens(self, real: Callable[..., int]) -> Callable[..., int]:
        def stand_in(path: Any, flags: int, *args: Any, **options: Any) -> int:
            full = self._full(path, options.get("dir_fd"))
            new = bool(flags & os.O_CREAT) and full is not None and not os.path.lexists(full)
            descriptor = real(path, flags, *args, **options)
            if new and full is not None:
                node = self._new_node(self._inode(full))
                self._contents[node] = b""
                self._change((*self._at(full), node))
            return descriptor

        return stand_in

    def _makes(self, real: Callable[..., None]) -> Callable[..., None]:
        def stand_in(path: Any, *args: Any, **options: Any) -> None:
            real(path, *args, **options)
            full = self._full(path, options.get("dir_fd"))
            if full is not None:
                node = self._new_node(self._inode(full))
                self._folders[node] = {}
                self._durable_folders[node] = {}
                self._change((*self._at(full), node))

        return stand_in

    def _links(self, real: Callable[..., None]) -> Callable[..., None]:
        def stand_in(source: Any, target: Any, **options: Any) -> None:
            real(source, target, **options)
            full = self._full(target, None)
            if full is not None:
                self._change((*self._at(full), self._nodes[self._inode(full)]))

        return stand_in

    def _renames(self, real: Callable[..., None]) -> Callable[..., None]:
        def stand_in(source: Any, target: Any, **options: Any) -> None:
            real(source, target, **options)
            old, new = self._full(source, None), self._full(target, None)
            assert (old is None) == (new is None)
            if old is not None and new is not None:
                # Of two folders one can be on disk and the other not: the store must not do that.
                assert os.path.dirname(old) == os.path.dirname(new)
                node = self._nodes[self._inode(new)]
                self._change((*self._at(new), node), (*self._at(old), None))

        return stand_in

    def _removes(self, real: Callable[..., None]) -> Callable[..., None]:
        def stand_in(path: Any, **options: Any) -> None:
            full = self._full(path, options.get("dir_fd"))
            real(path, **options)
            if full is not None:
                self._change((*self._at(full), None))

        return stand_in

    def _writes(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(descriptor: int, data: Any) -> Any:
            done = real(descriptor, data)
            self._instant()
            return done

        return stand_in

    def _syncs(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def stand_in(descriptor: int) -> None:
            self._instant()  # what a buffer of Python's own has passed on by now
            real(descriptor)
            full = self._full(f"/proc/self/fd/{descriptor}", None)
            if full is None:
                return
            node = self._nodes[os.fstat(descriptor).st_ino]
            if node in self._folders:
                self._durable_folders[node] = dict(self._folders[node])
                self._pending = [change for change in self._pending if change[0] != node]
            else:
                self._durable_contents[node] = self._contents[node]
            self.synced += 1
            self._instant()

        return stand_in

    # The record.

    def _full(self, path: Any, inside: int | None) -> str | None:
        """Return the path below the root, None for one elsewhere."""
        name = os.fsdecode(path)
        if name.startswith("/proc/self/fd/"):
            name = os.readlink(name).removesuffix(" (deleted)")
        elif inside is not None:
            name = os.path.join(os.readlink(f"/proc/self/fd/{inside}"), name)
        name = os.path.abspath(name)
        return name if name == str(self.root) or name.startswith(f"{self.root}/") else None

    def _inode(self, full: str) -> int:
        return os.lstat(full).st_ino

    def _new_node(self, inode: int) -> int:
        """Return a number that is never used again, as inodes are."""
        self._last_node += 1
        self._nodes[inode] = self._last_node
        return self._last_node

    def _at(self, full: str) -> tuple[int, str]:
        return self._nodes[self._inode(os.path.dirname(full))], os.path.basename(full)

    def _change(self, *changes: Change) -> None:
        for folder, name, node in changes:
            _apply(self._folders[folder], name, node)
        self._pending += changes
        self._instant()

    def _read_contents(self) -> None:
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    self._contents[self._nodes[status.st_ino]] = Path(path).read_bytes()

    def _instant(self) -> None:
        """Take the images that a power loss now can leave."""
        self._read_contents()
        durable = {node: self._durable_contents.get(node, b"") for node in self._contents}
        zeros = {
            n: self._mangled(n, lambda data, kept: kept + bytes(len(data) - len(kept)))
            for n in self._contents
        }
        half = {
            n: self._mangled(n, lambda data, kept: data[: (len(data) + len(kept)) // 2])
            for n in self._contents
        }
        images = {
            self._image(self._durable_folders, durable),
            self._image(self._durable_folders, self._contents),
            *(self._image(self._folders, data) for data in (durable, zeros, half, self._contents)),
            self._image(self._some_changes(), self._chance.choice((durable, zeros, half))),
        }
        self.instants.append((self._said(), images))

    def _mangled(self, node: int, how: Callable[[bytes, bytes], bytes]) -> bytes:
        data, kept = self._contents[node], self._durable_contents.get(node, b"")
        if data == kept:
            return data
        # Only what was appended since can be torn; what is rewritten can be so as a whole.
        return how(data, kept if data.startswith(kept) else b"")

    def _some_changes(self) -> dict[int, Names]:
        """Return folders of which each has got a part of its changes to the disk, in order."""
        folders = {node: dict(names) for node, names in self._durable_folders.items()}
        for folder in {change[0] for change in self._pending}:
            own = [change for change in self._pending if change[0] == folder]
            for _, name, node in own[: self._chance.randint(0, len(own))]:
                _apply(folders[folder], name, node)
        return folders

    def _image(self, folders: dict[int, Names], contents: dict[int, bytes]) -> Image:
        found_folders: set[str] = set()
        found_files: set[tuple[str, bytes]] = set()
        left = [("", 0)]
        while left:
            at, node = left.pop()
            for name, below in folders[node].items():
                path = os.path.join(at, name)
                if below in self._folders:
                    found_folders.add(path)
                    left.append((path, below))
                else:
                    found_files.add((path, contents[below]))
        return Image(frozenset(found_folders), frozenset(found_files))


def _apply(names: Names, name: str, node: int | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
