// One executor from those of several devices: deals out the rows of a pass, and of a clustering.
//
// A model is trained by the first device. Blocks of a pass go to all of them in turn; what is found
// for queries is merged by (distance, id), so that it does not depend on which device got which
// block. Rows that build_dataset() collects lie on all devices: a step of k-means adds up their
// sums.
#pragma once

#include "kernels/executor.h"

#include <memory>
#include <string>
#include <vector>

namespace pgwarp {

// Takes at least one executor. Where one of them falls back to the CPU (Executor::failed()), its
// blocks in flight are the last that it gets, as long as another works. All exceptions pass; where
// a device that does not fall back has failed, drop_failed() leaves it out.
std::unique_ptr<Executor> make_executor_group(std::vector<std::unique_ptr<Executor>> members);

// For messages: the names of several devices, "2 x NAME" where they are equal.
std::string name_of_group(const std::vector<std::string>& names);

}  // namespace pgwarp
