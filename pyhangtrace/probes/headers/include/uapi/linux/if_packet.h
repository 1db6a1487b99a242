// Stub of the kernel header of this name: empty, since no program of ours sees packets.
#pragma once
