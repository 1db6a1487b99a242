// Stub of the kernel header of this name: what bcc's stack trace tables need, as a constant expression.
#pragma once

#define roundup_pow_of_two(n) (1UL << (64 - __builtin_clzl((n) - 1)))
