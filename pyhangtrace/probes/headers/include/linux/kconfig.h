// Stub of the kernel header of this name: the few settings that bcc's own helpers.h asks for.
// The real one differs per kernel build; nothing of that reaches our programs, because they use
// tracepoint fields and helpers only, never a kernel structure.
#pragma once

#define CONFIG_64BIT 1
#define CONFIG_BPF_SYSCALL 1
