/// ops/families.h — declares the functions that the rows of ops.def name; one header a family.
#pragma once

#include "ops/ops.h"
