// One rank of gloo_test.cpp, started by launch_local.
//
//   gloo_rank DIRECTORY MODE      leaves RANK.result, or RANK.error, in the directory
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "lib/comm/gloo_ranks.h"
#include "tests/comm/gloo/script.h"

namespace fsdpctl {
namespace {

void collectives(GlooRanks& ranks, std::string& result) {
  result = run_script(ranks.world());
  ranks.close();
}

// Works until somebody fails.
void work(GlooRanks& ranks, std::string& result) {
  for (;;) result = run_script(ranks.world());
}

void other_size(GlooRanks& ranks, std::string&) {
  const uint64_t count = ranks.world().rank() == 1 ? 70'000 : 7;
  std::vector<float> in(count), out(count * static_cast<uint64_t>(ranks.world().size()));
  ranks.world().all_gather({DType::float32, in.data(), count}, {DType::float32, out.data(), out.size()}, "layers.3");
}

// A rank with an error of its own, while the others wait for it.
void gives_up(GlooRanks& ranks, std::string&) {
  if (ranks.world().rank() == 1) {
    const Error why = Error(Exit::damaged, "token file is cut short").at("data.bin");
    ranks.world().abort(why.finding());
    throw why;
  }
  ranks.world().barrier("step 7");
}

// Ends as if nothing were, while the others wait for it.
void leaves(GlooRanks& ranks, std::string&) {
  if (ranks.world().rank() != 1) ranks.world().barrier("step 7");
}

// Pairs (0, 1) and (2, 3) of four; then each with its like in the other pair.
void groups(GlooRanks& ranks, std::string& result) {
  const int rank = ranks.world().rank(), pair = rank / 2, place = rank % 2;
  const auto shard = ranks.group(fmt::format("shard{}", pair), {pair * 2, pair * 2 + 1});
  const auto replicate = ranks.group(fmt::format("replicate{}", place), {place, place + 2});
  for (const auto& one : {shard.get(), replicate.get()}) {
    for (const std::string& text : one->exchange(std::to_string(rank), "numbers")) result += text;
    result += ' ';
  }
  ranks.world().barrier("both");
  // The second pair disagrees; its numbers among all are what is named.
  if (pair == 1) {
    float value = 0;
    shard->broadcast({DType::float32, &value, 1}, place, "u");
  } else {
    shard->barrier("waits for nobody else");
    replicate->barrier("waits for the second pair");
  }
}

int run(const std::string& directory, const std::string& mode) {
  std::string result, name = process_variable("RANK").value_or("none");
  const auto leave = [&](const std::string& kind, const std::string& text) {
    std::ofstream(directory + "/" + name + "." + kind, std::ios::binary) << text;
  };
  try {
    GlooRanksOptions options;
    options.communicator.timeout = Milliseconds(mode == "hang" ? 3000 : 20'000);
    options.connect = Milliseconds(mode == "absent" ? 1000 : 20'000);
    if (mode == "absent" && name == "1") {
      std::this_thread::sleep_for(Milliseconds(2500));
      return 0;
    }
    GlooRanks ranks(read_launch(), options);
    if (mode == "collectives") collectives(ranks, result);
    if (mode == "work" || mode == "hang") work(ranks, result);
    if (mode == "other_size") other_size(ranks, result);
    if (mode == "gives_up") gives_up(ranks, result);
    if (mode == "leaves") leaves(ranks, result);
    if (mode == "groups") groups(ranks, result);
    leave("result", result);
    return 0;
  } catch (const Error& e) {
    leave("result", result);
    leave("error", fmt::format("{}\n{}\n{}", e.finding().where.rank, e.what(), e.finding().hint));
    return static_cast<int>(e.code());
  }
}

}  // namespace
}  // namespace fsdpctl

int main(int, char** argv) { return fsdpctl::run(argv[1], argv[2]); }
