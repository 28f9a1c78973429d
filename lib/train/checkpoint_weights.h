// A model's parameters from a checkpoint of any format: Hugging Face's safetensors, DCP, or others. Each rank reads just what
// it holds.
#pragma once

#include <memory>

#include "lib/ckpt/checkpoint.h"
#include "lib/train/models/module.h"
#include "lib/train/unit_parameters.h"

namespace fsdpctl::train {

// Reads from `checkpoint`, whose pieces are resolved, and which must outlive what is returned; for one thread. Values of 16 bits and
// fewer are widened.
// Error(refused) where names, shapes or dtypes differ from the model's, listing what does. Of tied parameters one name is enough;
// where several are there, Error(refused) from what is returned if they differ in what is asked for. The tensors of `checkpoint`
// that are no parameters of the model's must be buffers of it, or `extra_allowed`.
ParameterValues checkpoint_weights(const Checkpoint& checkpoint, Module& model, bool extra_allowed = false);

}  // namespace fsdpctl::train
