"""Where the layout of NCCL's structures comes from: debug information, else the code of exported functions."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from pyhangtrace._native import nccl_layout

SOURCE = """
#include <stddef.h>
#include <stdint.h>
struct ncclTaskColl {
  struct ncclTaskColl* next;
  int func;
  size_t count;
  int32_t nMaxChannels : 8, nWarps : 8, algorithm : 8, protocol : 8;
};
struct ncclConfig_v90000 { size_t size; const char* commName; };
struct ncclComm {
  uint64_t startMagic;
  char channels[@CHANNELS@];
  uint64_t commHash;
  int rank, nRanks, cudaDev, nvmlDev;
  struct ncclConfig_v90000 config;
  struct ncclTaskColl* memPool_ncclTaskColl;
  uint64_t seqNumber[5];
  uint64_t endMagic;
};
typedef struct ncclComm comm;
int pncclCommUserRank(const comm* c, int* rank) { if (rank == NULL) return 4; *rank = c->rank; return 0; }
int pncclCommCount(const comm* c, int* count) { if (count == NULL) return 4; *count = c->nRanks; return 0; }
int pncclCommCuDevice(const comm* c, int* device) { if (device == NULL) return 4; *device = c->cudaDev; return 0; }
size_t sizes(void) { return sizeof(comm) + sizeof(struct ncclTaskColl) + sizeof(struct ncclConfig_v90000); }
"""
CHANNELS = 40_000
HASH = 8 + CHANNELS


@pytest.fixture(params=["-gdwarf-4", "-gdwarf-5", "-gdwarf-5 -gz=zlib"])
def library(request: pytest.FixtureRequest, tmp_path: Path, c_compiler: str) -> Path:
    """A library with such structures, with debug information of this kind."""
    source, built = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text(SOURCE.replace("@CHANNELS@", str(CHANNELS)))
    flags = ["-O2", "-fPIC", "-shared", *request.param.split()]
    subprocess.run([c_compiler, *flags, "-o", str(built), str(source)], check=True, timeout=60)
    return built


def test_debug_information_tells_all_offsets(library: Path) -> None:
    layout = nccl_layout(str(library))
    assert layout is not None
    assert layout["layout_from"] == "dwarf"
    assert layout["comm_size"] == HASH + 8 + 4 * 4 + 16 + 8 + 5 * 8 + 8
    offsets = layout["offsets"]
    assert offsets["ncclComm.commHash"] == HASH
    assert offsets["ncclComm.rank"] == HASH + 8
    assert offsets["ncclComm.endMagic"] == layout["comm_size"] - 8
    assert offsets["ncclConfig_v*.commName"] == 8
    # A bit-field is where its byte is.
    assert offsets["ncclTaskColl.algorithm"] == 26
    assert offsets["ncclTaskColl.protocol"] == 27
    assert "ncclComm.initState" not in offsets


def test_of_a_stripped_library_the_getters_tell_the_rank(library: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("reads x86-64 code")
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("needs strip")
    subprocess.run([strip, str(library)], check=True, timeout=60)
    assert nccl_layout(str(library), source="dwarf") is None
    layout = nccl_layout(str(library))
    assert layout is not None
    assert layout["layout_from"] == "disassembly"
    assert layout["offsets"]["ncclComm.commHash"] == HASH
    assert layout["offsets"]["ncclComm.rank"] == HASH + 8
    assert layout["offsets"]["ncclComm.nRanks"] == HASH + 12
    assert layout["offsets"]["ncclComm.cudaDev"] == HASH + 16


@pytest.mark.parametrize(
    ("text", "move", "layout_from"),
    [
        ("NCCL version 2.27.7+cuda12.8", 0, "release"),
        # A fork that has another member, another release, a text of something else.
        ("NCCL version 2.27.7+cuda12.8", 16, "disassembly"),
        ("NCCL version 2.26.2+cuda12.8", 0, "disassembly"),
        ("NCCL version 2.99.1+cuda14.0", 0, "disassembly"),
        ("needs NCCL version 2.27.7", 0, "disassembly"),
        ("RCCL version 2.27.7 compiled with ROCm", 0, "disassembly"),
        # Before there was a mark at the end.
        ("NCCL version 2.20.5+cuda12.4", 1066160 - 10440, "disassembly"),
    ],
)
def test_another_build_of_a_release(
    text: str, move: int, layout_from: str, tmp_path: Path, c_compiler: str
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("reads x86-64 code")
    source, built = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    # The hash of 2.27.7, and of 2.20.5.
    hash_at = 1066160 - move if text.startswith("NCCL version 2.20") else 1066160 + move
    code = SOURCE.replace("@CHANNELS@", str(hash_at - 8))
    source.write_text(f'{code}\nconst char printed_at_start[] = "\\0{text}";\n')
    flags = ["-O2", "-fPIC", "-shared", "-s", "-Wl,--build-id=none"]
    subprocess.run([c_compiler, *flags, "-o", str(built), str(source)], check=True, timeout=60)
    layout = nccl_layout(str(built))
    assert layout is not None
    assert layout["layout_from"] == layout_from
    assert layout["offsets"]["ncclComm.commHash"] == hash_at
    assert ("ncclComm.endMagic" in layout["offsets"]) == (layout_from == "release")


def test_another_library_has_only_what_all_releases_share(tmp_path: Path, c_compiler: str) -> None:
    built = tmp_path / "libnccl.so.2"
    source = tmp_path / "other.c"
    source.write_text("int pncclCommUserRank(void) { return 0; }\n")
    subprocess.run(
        [c_compiler, "-g", "-fPIC", "-shared", "-o", str(built), str(source)], check=True, timeout=60
    )
    layout = nccl_layout(str(built))
    assert layout is not None
    assert layout["layout_from"] == "fingerprint"
    assert layout["offsets"]["ncclComm.commHash"] == 0


def test_what_is_no_library_has_no_layout(tmp_path: Path) -> None:
    file = tmp_path / "libnccl.so.2"
    file.write_bytes(b"\x7fELF" + b"\xff" * 4000)
    assert nccl_layout(str(file)) is None
    assert nccl_layout(str(tmp_path / "absent")) is None
