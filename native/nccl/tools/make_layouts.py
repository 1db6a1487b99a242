"""Prints native/nccl/layout_table.cpp: the layouts of published libraries, by their own debug information.

python native/nccl/tools/make_layouts.py RELEASE=/path/to/libnccl.so.2 ... > native/nccl/layout_table.cpp
"""

from __future__ import annotations

import sys

from pyhangtrace._native import nccl_layout

HEAD = """#include "nccl/layout.hpp"

// Made by tools/make_layouts.py from the debug information of the wheels nvidia-nccl-cu12 and -cu13 on PyPI:
// for builds of which the same code was stripped later, keeping its build id. -1: this release has no such
// member.
namespace hangtrace::nccl {

namespace {

// clang-format off
constexpr KnownLayout table[] = {
"""
TAIL = """};
// clang-format on

}  // namespace

std::span<const KnownLayout> known_layouts() {
  return table;
}

}  // namespace hangtrace::nccl"""


def main(arguments: list[str]) -> None:
    sys.stdout.write(HEAD)
    for argument in arguments:
        release, _, path = argument.partition("=")
        layout = nccl_layout(path, source="dwarf")
        if layout is None:
            raise SystemExit(f"{path} has no debug information, or none of NCCL")
        row = ", ".join(map(str, layout["row"]))
        sizes = ", ".join(str(layout[name]) for name in ("comm_size", "sub_size", "peer_size"))
        head = f'"{layout["build_id"]}", "{release}", {sizes}'
        sys.stdout.write(f"    {{{head}, {{{{{row}}}}}}},\n")
    sys.stdout.write(TAIL + "\n")


main(sys.argv[1:])
