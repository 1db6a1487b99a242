// Stub of the kernel header of this name.
#pragma once

#include <uapi/linux/ptrace.h>
