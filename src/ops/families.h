/// ops/families.h — declares the functions that the rows of ops.def name; one header a family.
#pragma once

#include "ops/ops.h"

#include "ops/convert.h"
#include "ops/einsum.h"
#include "ops/elementwise.h"
#include "ops/fill.h"
#include "ops/gather.h"
#include "ops/logic.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/resize.h"
#include "ops/sample.h"
#include "ops/scatter.h"
#include "ops/shape.h"
#include "ops/signal.h"
#include "ops/slice.h"
#include "ops/sort.h"
