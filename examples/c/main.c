/* A whole program in C: compiles a model, keeps the compiled file beside it, runs it once, and
 * prints what it answers.
 *
 *   answer MODEL.onnx [DIMENSION=EXTENT]...        inputs are 0, 1/8, 2/8, ... 7/8, 0, ...
 *   answer MODEL.obk
 */
#include <obelisk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the error's kind, after it was told. */
static void check(obelisk_error* error) {
  if (!error) return;
  const int code = obelisk_error_code(error);
  fprintf(stderr, "error: %s\n", obelisk_error_text(error));
  obelisk_error_free(error);
  exit(code);
}

static void told(obelisk_log_level level, const char* part, const char* text, void* user) {
  fprintf(stderr, "%s%s %s: %s\n", (const char*)user,
          level == OBELISK_LOG_WARNING ? "warning from" : "from", part, text);
}

static void describe(const char* way, const obelisk_port* port) {
  printf("%s %s [", way, port->name);
  for (size_t d = 0; d < port->rank; ++d)
    printf(d ? ", %lld" : "%lld", (long long)port->extents[d]);
  printf("]\n");
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: answer MODEL.onnx|MODEL.obk [DIMENSION=EXTENT]...\n");
    return OBELISK_USAGE;
  }
  obelisk_set_log(told, "obelisk: ", OBELISK_LOG_WARNING);
  obelisk_model* model = NULL;
  const size_t length = strlen(argv[1]);
  if (length > 4 && strcmp(argv[1] + length - 4, ".obk") == 0) {
    check(obelisk_open_file(argv[1], NULL, &model));
  } else {
    obelisk_dimension* dimensions = calloc((size_t)argc, sizeof *dimensions);
    obelisk_compile_options options = OBELISK_INIT(obelisk_compile_options);
    for (int k = 2; k < argc; ++k) {
      char* equals = strchr(argv[k], '=');
      if (!equals) {
        fprintf(stderr, "usage: '%s' is not DIMENSION=EXTENT\n", argv[k]);
        return OBELISK_USAGE;
      }
      *equals = 0;
      dimensions[options.dimension_count].name = argv[k],
      dimensions[options.dimension_count++].extent = atoll(equals + 1);
    }
    options.dimensions = dimensions;
    check(obelisk_compile_file(argv[1], &options, &model));
    free(dimensions);
    char* beside = malloc(length + 5);
    check(obelisk_save_file(model, strcat(strcpy(beside, argv[1]), ".obk")));
    free(beside);
  }

  obelisk_context* context = NULL;
  check(obelisk_context_create(model, 0, &context));
  for (size_t k = 0; k < obelisk_input_count(model); ++k) {
    obelisk_port port = OBELISK_INIT(obelisk_port);
    check(obelisk_input(model, k, &port));
    describe("in ", &port);
    void* memory = NULL;
    check(obelisk_input_memory(context, port.name, &memory, NULL));
    if (port.element == OBELISK_F32)
      for (int64_t at = 0; at < port.count; ++at) ((float*)memory)[at] = (float)(at % 8) / 8;
  }
  check(obelisk_run(context));
  for (size_t k = 0; k < obelisk_output_count(model); ++k) {
    obelisk_port port = OBELISK_INIT(obelisk_port);
    check(obelisk_output(model, k, &port));
    describe("out", &port);
    const void* memory = NULL;
    check(obelisk_output_memory(context, port.name, &memory, NULL));
    if (port.element == OBELISK_F32)
      for (int64_t at = 0; at < port.count; ++at) printf("%.9g\n", ((const float*)memory)[at]);
  }
  obelisk_context_free(context);
  obelisk_model_free(model);
  return OBELISK_OK;
}
