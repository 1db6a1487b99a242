// Stub of the kernel header of this name. Used by bcc to size ring buffers only; we have none, so the
// smallest page size that any of our architectures has is right for all.
#pragma once

#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
