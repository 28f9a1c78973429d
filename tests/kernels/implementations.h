// Every implementation of the kernels that can run here: the body of each test runs on all of them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace fsdpctl::kernels {

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<Kernels>()> make;
};

// tests/kernels: the CPU's, and the GPU's per-thread code on the CPU. tests/gpu: a real GPU.
std::vector<Implementation> implementations();
inline std::string name_of(const testing::TestParamInfo<Implementation>& info) { return info.param.name; }
inline void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }

// Arrays in the memory of the implementation under test, freed with the object.
class KernelsTest : public testing::TestWithParam<Implementation> {
 protected:
  KernelsTest() : kernels_(GetParam().make()) {}
  ~KernelsTest() override {
    kernels_->synchronize();
    for (void* memory : arrays_) kernels_->release(memory);
  }

  Kernels& kernels() { return *kernels_; }

  // A copy of the values, `shift` elements behind an aligned address.
  template <class T>
  T* upload(const std::vector<T>& values, size_t shift = 0) {
    T* memory = uninitialised<T>(values.size() + shift);
    const CopyEntry entry{values.data(), memory + shift, values.size() * sizeof(T)};
    kernels_->wait(kernels_->copy({&entry, 1}, Direction::to_device));
    return memory + shift;
  }
  template <class T>
  T* uninitialised(size_t count) {
    auto* memory = static_cast<T*>(kernels_->allocate(count * sizeof(T) + 1));
    arrays_.push_back(memory);
    return memory;
  }
  template <class T>
  std::vector<T> download(const T* memory, size_t count) {
    std::vector<T> values(count);
    const CopyEntry entry{memory, values.data(), count * sizeof(T)};
    kernels_->wait(kernels_->copy({&entry, 1}, Direction::to_host));
    return values;
  }

 private:
  std::unique_ptr<Kernels> kernels_;
  std::vector<void*> arrays_;
};

}  // namespace fsdpctl::kernels
