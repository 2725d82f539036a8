/* What the three parts of the module offer each other.  Nothing here knows Python. */
#ifndef KVCONN_NATIVE_H
#define KVCONN_NATIVE_H

#include <stddef.h>
#include <stdint.h>

/* pool.c: call task(context, i) for every i below count, on up to `threads` threads, one of them
 * the caller's; returns when all calls have. */
typedef void (*kvconn_task)(void *context, size_t i);
void kvconn_run(kvconn_task task, void *context, size_t count, int threads);

/* files.c: 0 or an errno. */
int kvconn_read_file(const char *path, uint8_t *buffer, size_t size, int direct);
int kvconn_write_file(const char *temporary, const char *path, const uint8_t *buffer, size_t size,
                      int direct, int sync);

/* xxh3.c: the canonical digest of at least KVCONN_XXH3_LEAST bytes. */
#define KVCONN_XXH3_LEAST 241
void kvconn_xxh3_128(const uint8_t *data, size_t size, uint8_t digest[16]);

#endif
