// Stub of the kernel header of this name. The version is the one of the running kernel and comes from
// the loader as HANGTRACE_KERNEL_VERSION.
#pragma once

#ifndef HANGTRACE_KERNEL_VERSION
#error "HANGTRACE_KERNEL_VERSION must be defined by the loader"
#endif

#define KERNEL_VERSION(major, minor, patch) \
  (((major) << 16) + ((minor) << 8) + ((patch) > 255 ? 255 : (patch)))
#define LINUX_VERSION_CODE HANGTRACE_KERNEL_VERSION
