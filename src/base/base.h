/// base/base.h — the door of `base`: what every room may use and what knows no room.
///
/// Names here live in `obelisk` itself, so that `Result`, `Shape` and `CHECK` need no prefix
/// anywhere.
#pragma once

#include "base/check.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/npy.h"
#include "base/progress.h"
#include "base/result.h"
#include "base/tensor.h"
#include "base/text.h"
#include "base/units.h"
