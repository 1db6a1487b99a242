"""Names that a target chooses may end a line for Python, but not for the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pyhangtrace.collect import maps, procfs
from pyhangtrace.collect.processes import describe
from pyhangtrace.model.process_table import ProcessTable
from tests.unit.collect.helpers import stat_line, write


def test_a_mapped_file_with_a_carriage_return_in_its_name() -> None:
    content = (
        b"10000-210000 rw-s 00000000 08:02 77    /x/a\rb 0 0 zz 7 g\n"
        b"300000-500000 r--p 00000000 08:02 78    /x/libtorch_cpu.so\n"
        b"500000-500100 rw-p 00000000 00:00 0 \n"
    )
    loaded, files, *_ = maps.parse(content)
    assert loaded == ("torch",)
    assert [(file.device, file.inode, file.mapped, file.shared) for file in files] == [
        (os.makedev(8, 2), 77, 2 << 20, True),
        (os.makedev(8, 2), 78, 2 << 20, False),
    ]
    assert "\r" not in files[0].path


def test_a_process_that_names_itself_like_a_line_of_status(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "7/stat": stat_line(7, "a\x0bVmPTE:\t9 kB"),
            "7/status": "Name:\ta\x0bVmPTE:\t9 kB\nUid:\t5\t5\t5\t5\n",
            "7/cgroup": b"0::/job\xff\n",
        },
    )
    row = procfs.read_stat(7, str(tmp_path))
    assert row is not None
    facts = describe([7], ProcessTable.of([row]), {}, proc_root=str(tmp_path))[7]
    assert facts.uid == 5
    assert facts.memory.page_tables is None
    assert facts.cgroup == "/job\N{REPLACEMENT CHARACTER}"
    msgspec.json.encode(facts)
