/* A small pool of threads that all callers share.
 *
 * A caller works on its own batch too, so that a batch ends even when no thread can be started, and
 * callers cannot wait for each other in a circle. */
#include "native.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define MOST_THREADS 32

struct batch {
    kvconn_task task;
    void *context;
    size_t count;
    atomic_size_t next;
    int wanted; /* helpers that may still join */
    int active; /* helpers at work */
    pthread_cond_t idle;
    struct batch *link;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static struct batch *batches;
static int threads_started, threads_idle;

static void work_on(struct batch *batch)
{
    size_t i;
    while ((i = atomic_fetch_add(&batch->next, 1)) < batch->count)
        batch->task(batch->context, i);
}

static struct batch *joinable(void)
{
    struct batch *batch = batches;
    while (batch && (!batch->wanted || atomic_load(&batch->next) >= batch->count))
        batch = batch->link;
    return batch;
}

static void *helper(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct batch *batch = joinable();
        if (!batch) {
            threads_idle++;
            pthread_cond_wait(&ready, &lock);
            threads_idle--;
            continue;
        }
        batch->wanted--;
        batch->active++;
        pthread_mutex_unlock(&lock);
        work_on(batch);
        pthread_mutex_lock(&lock);
        if (!--batch->active)
            pthread_cond_signal(&batch->idle);
    }
    return NULL;
}

/* The threads of the parent do not exist in the child. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&ready, NULL);
    batches = NULL;
    threads_started = threads_idle = 0;
}

/* With the lock held. */
static void start_helpers(int wanted)
{
    static int registered;
    if (!registered)
        registered = !pthread_atfork(NULL, NULL, after_fork_in_child);
    sigset_t all, before;
    sigfillset(&all); /* signals are for Python's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int missing = wanted - threads_idle; missing > 0 && threads_started < MOST_THREADS;
         missing--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, helper, NULL))
            break;
        pthread_detach(thread);
        threads_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void enlist(struct batch *batch)
{
    pthread_mutex_lock(&lock);
    batch->link = batches;
    batches = batch;
    start_helpers(batch->wanted);
    pthread_cond_broadcast(&ready);
    pthread_mutex_unlock(&lock);
}

static void await_helpers(struct batch *batch)
{
    pthread_mutex_lock(&lock);
    struct batch **link = &batches;
    while (*link != batch)
        link = &(*link)->link;
    *link = batch->link;
    while (batch->active)
        pthread_cond_wait(&batch->idle, &lock);
    pthread_mutex_unlock(&lock);
}

void kvconn_run(kvconn_task task, void *context, size_t count, int threads)
{
    struct batch batch = {.task = task, .context = context, .count = count};
    atomic_init(&batch.next, 0);
    size_t helpers = threads > 1 ? (size_t)threads - 1 : 0;
    if (helpers + 1 > count)
        helpers = count ? count - 1 : 0;
    if (!helpers) {
        work_on(&batch);
        return;
    }
    batch.wanted = helpers < MOST_THREADS ? (int)helpers : MOST_THREADS;
    pthread_cond_init(&batch.idle, NULL);
    enlist(&batch);
    work_on(&batch);
    await_helpers(&batch);
    pthread_cond_destroy(&batch.idle);
}
