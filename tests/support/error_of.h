// The finding of the Error that a piece of code throws.
#pragma once

#include <gtest/gtest.h>

#include "lib/base/finding.h"

namespace fsdpctl {

// A test failure and an empty finding where `body` throws none.
template <class Body>
Finding error_of(Body&& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.finding();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

}  // namespace fsdpctl
