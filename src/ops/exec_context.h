#pragma once
// What every operator is handed: threads, scratch memory and the kernels of one SIMD target. Owns
// nothing; lives as long as one forward pass or longer. One thread drives it at a time.

#include "kernels/kernels.h"
#include "sys/arena.h"
#include "sys/thread_pool.h"

namespace k3::ops {

struct ExecContext {
  ThreadPool* pool = nullptr;
  Arena* arena = nullptr;
  const kernels::KernelTable* kernels = nullptr;
};

}  // namespace k3::ops
