// Stub of the kernel header of this name: no structure of the scheduler, only the length of a name.
#pragma once

#define TASK_COMM_LEN 16
