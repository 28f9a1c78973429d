// Prove: an output that was just written holds what went in, as its own reader sees it.
#pragma once

#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/format.h"

namespace fsdpctl {

struct Proof {
  Checkpoint reopened;
  std::vector<TensorIndex> source;   // for each tensor of `reopened`, the one of the checkpoint that was written
};

// Opens `path` with `format`, resolves and tiles it and compares the catalogs: every key (aliases too), dtype and shape, and every leaf that
// is no tensor. A leaf whose key is in `not_carried` may be missing, differ or be taken apart. Error(failed) otherwise.
Proof reopen(const Checkpoint& written, const Format& format, const std::string& path, const std::vector<std::string>& not_carried,
             int threads);

// Reads every byte of the output, past the page cache where possible, and compares with the sums of the transfer. Error(failed) names the
// first tensor that differs.
void read_back(const Proof& proof, const std::vector<TensorSum>& sums, const EngineOptions& options);

// That a tensor of the output holds other bytes than were written.
Error differs_when_read(const Checkpoint& output, TensorIndex tensor, const std::string& expected, const std::string& found);

// Does this error say that the output is wrong, rather than that something could not be done?
bool is_disproof(const Error& error);

// The transfer's sums in the order of the reopened catalog.
std::vector<TensorSum> sums_of_output(const Proof& proof, const std::vector<TensorSum>& sums);

}  // namespace fsdpctl
