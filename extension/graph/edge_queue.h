// Parallel workers that fill and write pages of an edge table while one process makes its edges.
//
// While a queue is open, the transaction is in parallel mode: nothing else may be written.
#pragma once

#include "extension/graph/edge_task.h"

namespace pgwarp {

struct EdgeQueue;
// Null: no worker can be had.
EdgeQueue* open_edge_queue(const EdgeTarget& target, int workers);
// Copies the task. Where all workers have enough to do, the caller does one of their tasks.
void submit_task(EdgeQueue* queue, const EdgeTask& task);
// Returns when all tasks are done.
void close_edge_queue(EdgeQueue* queue);

}  // namespace pgwarp

extern "C" PGWARP_EXPORT void pgwarp_edge_worker(struct dsm_segment* segment, struct shm_toc* toc);
