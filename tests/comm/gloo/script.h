// One of everything, on fixed numbers: what threads and processes have to compute bit for bit alike.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lib/comm/communicator.h"

namespace fsdpctl {

inline std::vector<float> script_numbers(int rank, size_t count) {
  std::vector<float> values(count);
  uint64_t state = 0x9E3779B97F4A7C15u * static_cast<uint64_t>(rank + 1);
  for (float& value : values) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    value = std::ldexp(static_cast<float>(state >> 40) - 8388608.0f, static_cast<int>(state % 24) - 34);
  }
  return values;
}

// This rank's results, one after the other.
inline std::string run_script(Communicator& ranks) {
  const auto size = static_cast<size_t>(ranks.size());
  std::string results;
  const auto keep = [&](const auto& values) {
    results.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  for (const size_t count : {0u, 1u, 1023u, 70'001u}) {
    const std::vector<float> mine = script_numbers(ranks.rank(), count), large = script_numbers(ranks.rank(), size * count);
    std::vector<float> gathered(size * count), reduced(count), sum = mine;
    const auto gather = ranks.start_all_gather({DType::float32, mine.data(), count},
                                               {DType::float32, gathered.data(), gathered.size()}, "gather");
    const auto reduce = ranks.start_reduce_scatter({DType::float32, large.data(), large.size()},
                                                   {DType::float32, reduced.data(), count}, "reduce");
    ranks.all_reduce({DType::float32, sum.data(), count}, Reduction::sum, "sum");
    reduce->wait();
    gather->wait();
    keep(gathered), keep(reduced), keep(sum);
    // The upper halves of float32 numbers are bfloat16 numbers.
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      std::vector<uint16_t> halves(size * count), part(count);
      for (size_t i = 0; i < halves.size(); ++i) {
        uint32_t bits;
        std::memcpy(&bits, &large[i], sizeof bits);
        halves[i] = static_cast<uint16_t>(dtype == DType::bfloat16 ? bits >> 16 : 0x2C00 + (bits & 0x13FF));
      }
      ranks.reduce_scatter({dtype, halves.data(), halves.size()}, {dtype, part.data(), count}, "halves");
      ranks.reduce_scatter({dtype, halves.data(), halves.size()}, {DType::float32, reduced.data(), count}, "halves");
      keep(part), keep(reduced);
    }
    std::vector<float> given = mine;
    ranks.broadcast({DType::float32, given.data(), count}, ranks.size() - 1, "give");
    keep(given);
  }
  for (const std::string& text : ranks.exchange(std::string(static_cast<size_t>(ranks.rank()) * 10'000, 'x'), "texts")) {
    results += std::to_string(text.size());
  }
  ranks.agree(std::nullopt, "end");
  return results;
}

}  // namespace fsdpctl
