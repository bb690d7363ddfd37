/// serve/serve.h — the door of `serve`: many models answer requests under deadlines.
#pragma once

#include "serve/engine.h"
#include "serve/engine_local.h"
