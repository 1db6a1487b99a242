// Stub of the kernel header of this name: the instruction encoding of classic BPF, which bcc's copy
// of linux/bpf.h builds upon. The numbers are a stable ABI.
#pragma once

// instruction classes
#define BPF_CLASS(code) ((code) & 0x07)
#define BPF_LD 0
#define BPF_LDX 1
#define BPF_ST 2
#define BPF_STX 3
#define BPF_ALU 4
#define BPF_JMP 5
#define BPF_RET 6
#define BPF_MISC 7

// operand sizes
#define BPF_SIZE(code) ((code) & 0x18)
#define BPF_W 0x00
#define BPF_H 0x08
#define BPF_B 0x10

// address modes
#define BPF_MODE(code) ((code) & 0xe0)
#define BPF_IMM 0x00
#define BPF_ABS 0x20
#define BPF_IND 0x40
#define BPF_MEM 0x60
#define BPF_LEN 0x80
#define BPF_MSH 0xa0

// arithmetic and jumps
#define BPF_OP(code) ((code) & 0xf0)
#define BPF_ADD 0x00
#define BPF_SUB 0x10
#define BPF_MUL 0x20
#define BPF_DIV 0x30
#define BPF_OR 0x40
#define BPF_AND 0x50
#define BPF_LSH 0x60
#define BPF_RSH 0x70
#define BPF_NEG 0x80
#define BPF_MOD 0x90
#define BPF_XOR 0xa0
#define BPF_JA 0x00
#define BPF_JEQ 0x10
#define BPF_JGT 0x20
#define BPF_JGE 0x30
#define BPF_JSET 0x40

// source operand
#define BPF_SRC(code) ((code) & 0x08)
#define BPF_K 0x00
#define BPF_X 0x08

#ifndef BPF_MAXINSNS
#define BPF_MAXINSNS 4096
#endif
