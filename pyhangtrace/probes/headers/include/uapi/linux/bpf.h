// Stub of the kernel header of this name: empty, since bcc brings its own copy and includes it first.
#pragma once
