// The list of formats: the one place that knows them all.
#pragma once

#include "lib/ckpt/format.h"

namespace fsdpctl {
FormatList all_formats();
}
