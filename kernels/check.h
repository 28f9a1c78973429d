// The rules of table.h that can be checked, for every implementation. Private to kernels/.
#pragma once

#include <span>

#include "kernels/table.h"

namespace fsdpctl::kernels {

// Each: Error(failed) names the operation, the row and what is wrong with it.
void check(std::span<const CastEntry> table, std::span<const CastCounts> counts);
void check(std::span<const RestoreEntry> table, std::span<const CastCounts> counts);
void check(std::span<const GradientEntry> table, std::span<const GradientNorm> results);
void check(std::span<const AdamEntry> table, std::span<const AdamScalars> scalars);
void check(std::span<const SgdEntry> table, std::span<const SgdScalars> scalars);
void check(std::span<const CopyEntry> table);

}  // namespace fsdpctl::kernels
