"""What a target can make the kernel print: names with anything in them, and lines that are not what they seem."""

from __future__ import annotations

from hypothesis import strategies as st

#: What separates lines or words for Python and not for the kernel, and what breaks text.
_ODD = b"\t\x0b\x0c\r\x1c\x1d\x1e\x85\xa0\xe2\x80\xa8 ():\\/[]->0x\xff\xfe\xc3"

odd_bytes = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([bytes([one]) for one in _ODD]), max_size=30).map(b"".join),
    st.sampled_from(
        [
            b") R 1 (",
            b"a\rb 00:00 1 2 3 4 5",
            b"a\x0bVmRSS:\t1 kB",
            b"a\x0b7: 3 FLOCK  ADVISORY  WRITE 1 08:02:3 0 EOF",
            b"x\r1-2 r--p 0 zz:zz 77 y",
            "\u2028Uid:\t7".encode(),
        ]
    ),
)

#: A file's or thread's name: no NUL and no newline, which the kernel escapes.
names = odd_bytes.map(lambda raw: raw.replace(b"\0", b"").replace(b"\n", b""))

comms = names.map(lambda raw: raw[:15])

lines = st.one_of(
    odd_bytes,
    st.lists(st.sampled_from([b"1:", b"->", b"FLOCK", b"-1", b"08:02:3", b"0", b"EOF", b"ff", b"0-1"])).map(
        b" ".join
    ),
)

garbage = st.lists(lines, max_size=8).map(b"\n".join)

numbers = st.one_of(st.integers(0, 1 << 20), st.integers(0, (1 << 64) - 1))
