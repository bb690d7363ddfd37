/* obelisk.h — Obelisk from C, and from every language that can call C: libobelisk.so.
 *
 *   obelisk_model* model = NULL;
 *   obelisk_error* error = obelisk_compile_file("m.onnx", NULL, &model);
 *   if (error) { fprintf(stderr, "%s\n", obelisk_error_text(error)); obelisk_error_free(error);
 * return 1; } obelisk_context* context = NULL; error = obelisk_context_create(model, 0, &context);
 *   error = obelisk_bind_input(context, "x", x, sizeof x);
 *   error = obelisk_bind_output(context, "y", y, sizeof y);
 *   error = obelisk_run(context);
 *
 * Errors   A function that can fail returns an error, which the caller frees, or NULL. Nothing is
 * thrown, and what a failed call was to make stays NULL. Freeing NULL does nothing. Structs  begin
 * with their size, which the caller sets (OBELISK_INIT): a library that knows more members takes
 * the missing ones as zeros, an older one refuses members that it does not know unless they are
 * zero. Zero is the default of every member. Threads  Models are immutable: any number of threads
 * may use one at once. A context belongs to one thread at a time; contexts of one model run side by
 * side. A model may be freed before its contexts. Errors and the log are free of threads. Memory
 * Strings that the library returns live as long as the model or error that they were asked of.
 * Stable   What stands here stays: later versions of the same soname add functions, members at the
 * ends of structs and values of enums.
 */
#ifndef OBELISK_H
#define OBELISK_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define OBELISK_API __attribute__((visibility("default")))
#else
#define OBELISK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct obelisk_model obelisk_model;
typedef struct obelisk_context obelisk_context;
typedef struct obelisk_error obelisk_error;

/* A struct with its size set and all else zero: obelisk_compile_options options =
 * OBELISK_INIT(obelisk_compile_options); */
#define OBELISK_INIT(type) {sizeof(type)}

/* ---- version ---- */
OBELISK_API const char* obelisk_version_string(void); /* "0.1.0" */
OBELISK_API uint32_t obelisk_version(void);           /* major * 2^16 + minor * 2^8 + patch */

/* ---- errors ---- */
typedef enum obelisk_code {
  OBELISK_OK = 0,
  OBELISK_USAGE = 1,       /* arguments, names, files that are not there */
  OBELISK_BAD_MODEL = 2,   /* the model, or the compiled file, contradicts itself or its format */
  OBELISK_UNSUPPORTED = 3, /* a valid model that this version does not run */
  OBELISK_BUILD = 4,       /* the host compiler failed, or Obelisk has a defect */
  OBELISK_ACCURACY = 5,    /* answers differ from the reference by more than the tolerance */
  OBELISK_MEMORY = 6,
  OBELISK_DEVICE = 7,
  OBELISK_INTERRUPTED = 130
} obelisk_code;
OBELISK_API obelisk_code obelisk_error_code(const obelisk_error* error); /* of NULL OBELISK_OK */
OBELISK_API const char* obelisk_error_text(const obelisk_error* error);  /* all of it in one line */
OBELISK_API const char* obelisk_error_message(const obelisk_error* error);
OBELISK_API const char* obelisk_error_node(
    const obelisk_error* error); /* the model's name for it, or "" */
OBELISK_API const char* obelisk_error_hint(const obelisk_error* error); /* the way out, or "" */
OBELISK_API void obelisk_error_free(obelisk_error* error);

/* ---- log ---- */
typedef enum obelisk_log_level {
  OBELISK_LOG_WARNING = 0,
  OBELISK_LOG_INFO = 1,
  OBELISK_LOG_DEBUG = 2
} obelisk_log_level;
/* Called on whichever thread a line arises, one at a time; it calls nothing of this library. */
typedef void (*obelisk_log_callback)(obelisk_log_level level, const char* part, const char* text,
                                     void* user);
/* Lines up to `most` go to `callback` in place of standard error; NULL: to standard error again.
 * For the whole process. */
OBELISK_API void obelisk_set_log(obelisk_log_callback callback, void* user, obelisk_log_level most);

/* ---- models ---- */
typedef struct obelisk_dimension { /* a symbolic dimension */
  const char* name;
  int64_t extent;
} obelisk_dimension;
typedef struct obelisk_shape { /* of an input */
  const char* input;
  const int64_t* extents;
  size_t rank;
} obelisk_shape;
typedef struct obelisk_values { /* of an input that shapes depend on */
  const char* input;
  const int64_t* values;
  size_t count;
} obelisk_values;

typedef struct obelisk_compile_options {
  size_t size;
  const char* target;      /* NULL: "cpu"; "cuda", "cuda:1", "auto", or an architecture: "sm_90a" */
  const char* precision;   /* NULL: "keep"; "fp32", "tf32", "fp16", "bf16" */
  const char* granularity; /* of a GPU; NULL: "auto"; "mono", "stitch", "op" */
  const obelisk_dimension* dimensions;
  size_t dimension_count;
  const obelisk_shape* shapes;
  size_t shape_count;
  const obelisk_values* values;
  size_t value_count;
  const char* folder;   /* of a model in memory: where its external data lies; NULL: it has none */
  const char* compiler; /* NULL: found on the PATH */
  const char* cache;    /* NULL: the user's folder; "off": none */
  int64_t
      memory_limit; /* bytes of the GPU's memory for weights and all contexts; 0: what there is */
  double verify_seconds;   /* that comparing with the reference may take; 0: 10 */
  int32_t no_verify;       /* not 0: answers are not compared with the reference */
  int32_t threads;         /* workers; 0: one a core */
  int32_t batch_invariant; /* not 0: on a GPU a row has the same bits in models of any batch */
  int32_t watchdog;        /* not 0: a GPU that waits for two seconds stops and says for what */
  int (*progress)(const char* step, double done,
                  void* user); /* done in [0, 1]; not 0 ends with OBELISK_INTERRUPTED */
  void* user;                  /* for `progress` */
  const char* dispatch;  /* of a graph of kernels on a GPU, or of a CPU's works; NULL: "auto" on
                            a CPU and on a machine with the GPU, else "waves"; "sequential",
                            "nimble", "opara", "critical" */
  double search_seconds; /* of "auto": for a search over orders, lanes and
                            kernels for fewer SMs; 0: none */
} obelisk_compile_options;

typedef struct obelisk_open_options {
  size_t size;
  const char* compiler;
  const char* cache;
  int64_t memory_limit;
  int32_t portable; /* not 0: the file's machine code is not run, all checksums are looked at, and
                       the graph inside is compiled again */
  int32_t gpu;      /* of a GPU's model: which one */
  int32_t watchdog;
} obelisk_open_options;

/* `options` may be NULL. */
OBELISK_API obelisk_error* obelisk_compile_file(const char* path,
                                                const obelisk_compile_options* options,
                                                obelisk_model** model);
OBELISK_API obelisk_error* obelisk_compile_memory(const void* onnx, size_t bytes,
                                                  const obelisk_compile_options* options,
                                                  obelisk_model** model);
OBELISK_API obelisk_error* obelisk_open_file(const char* path, const obelisk_open_options* options,
                                             obelisk_model** model);
OBELISK_API obelisk_error* obelisk_open_memory(const void* file, size_t bytes,
                                               const obelisk_open_options* options,
                                               obelisk_model** model);
OBELISK_API obelisk_error* obelisk_save_file(const obelisk_model* model, const char* path);
OBELISK_API obelisk_error* obelisk_save_memory(const obelisk_model* model, void** file,
                                               size_t* bytes); /* freed by obelisk_free */
OBELISK_API void obelisk_free(void* memory);
OBELISK_API void obelisk_model_free(obelisk_model* model);

typedef enum obelisk_element {
  OBELISK_F64 = 0,
  OBELISK_F32 = 1,
  OBELISK_F16 = 2,
  OBELISK_BF16 = 3,
  OBELISK_F8E4M3FN = 4,
  OBELISK_F8E4M3FNUZ = 5,
  OBELISK_F8E5M2 = 6,
  OBELISK_F8E5M2FNUZ = 7,
  OBELISK_F8E8M0 = 8,
  OBELISK_F4E2M1 = 9,
  OBELISK_I64 = 10,
  OBELISK_I32 = 11,
  OBELISK_I16 = 12,
  OBELISK_I8 = 13,
  OBELISK_I4 = 14,
  OBELISK_I2 = 15,
  OBELISK_U64 = 16,
  OBELISK_U32 = 17,
  OBELISK_U16 = 18,
  OBELISK_U8 = 19,
  OBELISK_U4 = 20,
  OBELISK_U2 = 21,
  OBELISK_B1 = 22 /* a byte, 0 or 1 */
} obelisk_element;

typedef struct obelisk_port { /* an input or an output: dense, row-major */
  size_t size;
  const char* name;
  obelisk_element element;
  size_t rank;
  const int64_t* extents;
  int64_t count; /* elements */
  size_t bytes;
} obelisk_port;

OBELISK_API size_t obelisk_input_count(const obelisk_model* model);
OBELISK_API size_t obelisk_output_count(const obelisk_model* model);
OBELISK_API obelisk_error* obelisk_input(const obelisk_model* model, size_t index,
                                         obelisk_port* port);
OBELISK_API obelisk_error* obelisk_output(const obelisk_model* model, size_t index,
                                          obelisk_port* port);
OBELISK_API const char* obelisk_model_name(const obelisk_model* model);
OBELISK_API const char* obelisk_model_target(
    const obelisk_model* model); /* "cpu", or the GPU's architecture */
OBELISK_API int32_t obelisk_model_gpu(const obelisk_model* model); /* which GPU; -1 of a CPU */
OBELISK_API int64_t obelisk_workspace_bytes(
    const obelisk_model* model); /* that each context takes, besides inputs and outputs */
OBELISK_API const char* obelisk_verified_rows(
    const obelisk_model* model); /* that were compared with the reference; "" where none were */

/* ---- contexts ---- */
/* `threads`: workers, the caller among them; 0: one a core. */
OBELISK_API obelisk_error* obelisk_context_create(const obelisk_model* model, int32_t threads,
                                                  obelisk_context** context);
OBELISK_API void obelisk_context_free(obelisk_context* context);

/* Reads an input from, or writes an output to, the caller's memory from now on: no copy. `bytes` is
 * the port's. Of a GPU's model it may be that GPU's memory, aligned to 16 bytes. NULL: the
 * context's own memory again. */
OBELISK_API obelisk_error* obelisk_bind_input(obelisk_context* context, const char* name,
                                              const void* memory, size_t bytes);
OBELISK_API obelisk_error* obelisk_bind_output(obelisk_context* context, const char* name,
                                               void* memory, size_t bytes);
/* The context's own memory for ports that are not bound. */
OBELISK_API obelisk_error* obelisk_input_memory(obelisk_context* context, const char* name,
                                                void** memory, size_t* bytes);
OBELISK_API obelisk_error* obelisk_output_memory(obelisk_context* context, const char* name,
                                                 const void** memory, size_t* bytes);

OBELISK_API obelisk_error* obelisk_run(obelisk_context* context);
/* On a stream of the caller's (a CUstream or cudaStream_t), every port bound to the GPU's memory:
 * returns before the work is done. A failure of the device may come with a later call. On a stream
 * that is being captured the run becomes a part of that graph, which the model is to outlive. */
OBELISK_API obelisk_error* obelisk_run_on(obelisk_context* context, void* stream);
/* Until all runs are done; the failure of one that failed after obelisk_run_on had returned. */
OBELISK_API obelisk_error* obelisk_wait(obelisk_context* context);

#ifdef __cplusplus
}
#endif
#endif
