// What a test may ask of the library that stands in for NCCL.
#pragma once

#include "api.h"

extern "C" {
// The call that came last, with its arguments, and how many came.
const char* fake_last();
int fake_calls();
// What the next calls answer.
void fake_answer(int result);
void fake_state(int result);  // of ncclCommGetAsyncError
// Kernels end only when told so.
void fake_hold_kernels(int hold);
void fake_end_kernels();
// Initialisations wait for each other, as in the bootstrap, until told to go on.
void fake_hold_starts(int hold);
int fake_load_profiler(const char* path, int version);
}
