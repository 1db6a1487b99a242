#pragma once

namespace hangtrace::memory {

/// Lets the heap of this process grow in few large steps, and that of the calling thread be backed by huge
/// pages where the kernel allows them: a first look at a large job allocates some megabytes, with a page
/// fault for each 4 KiB. For good; where the C library or the kernel has no such thing, nothing changes.
void prepare_heap();

}  // namespace hangtrace::memory
