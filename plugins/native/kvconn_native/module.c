/* The Python side: check the arguments, hold the buffers, release the lock once. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native.h"

#include <string.h>

struct job {
    const char *path, *temporary;
    Py_buffer view;
    int held;
    int end;
    uint8_t digest[16];
};

struct batch {
    struct job *jobs;
    Py_ssize_t count;
    int direct, sync;
};

static void let_go(struct batch *batch)
{
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (batch->jobs[i].held)
            PyBuffer_Release(&batch->jobs[i].view);
    PyMem_Free(batch->jobs);
}

static int is_list(PyObject *list, Py_ssize_t count, const char *name)
{
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "%s must be a list", name);
        return 0;
    }
    if (PyList_Size(list) != count) {
        PyErr_Format(PyExc_ValueError, "%s has %zd elements and buffers has %zd: give as many", name,
                     PyList_Size(list), count);
        return 0;
    }
    return 1;
}

static const char *path_at(PyObject *list, Py_ssize_t i)
{
    PyObject *path = PyList_GetItem(list, i);
    char *text;
    Py_ssize_t length;
    if (!path || PyBytes_AsStringAndSize(path, &text, &length))
        return NULL;
    if ((size_t)length != strlen(text)) {
        PyErr_SetString(PyExc_ValueError, "a path has a null byte in it: give another name");
        return NULL;
    }
    return text;
}

/* Buffers are held until let_go; 0 when an error is set. */
static int hold(struct batch *batch, PyObject *buffers, int flags, int threads)
{
    if (threads < 1) {
        PyErr_SetString(PyExc_ValueError, "threads must be at least 1");
        return 0;
    }
    if (!PyList_Check(buffers)) {
        PyErr_SetString(PyExc_TypeError, "buffers must be a list");
        return 0;
    }
    batch->count = PyList_Size(buffers);
    batch->jobs = PyMem_Calloc(batch->count ? (size_t)batch->count : 1, sizeof *batch->jobs);
    if (!batch->jobs) {
        batch->count = 0;
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        struct job *job = batch->jobs + i;
        if (PyObject_GetBuffer(PyList_GetItem(buffers, i), &job->view, flags))
            return 0;
        job->held = 1;
    }
    return 1;
}

static int name_files(struct batch *batch, PyObject *temporaries, PyObject *paths)
{
    if (!is_list(paths, batch->count, "paths") ||
        (temporaries && !is_list(temporaries, batch->count, "temporaries")))
        return 0;
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        struct job *job = batch->jobs + i;
        if (!(job->path = path_at(paths, i)) ||
            (temporaries && !(job->temporary = path_at(temporaries, i))))
            return 0;
    }
    return 1;
}

static void run(kvconn_task task, struct batch *batch, int threads)
{
    Py_BEGIN_ALLOW_THREADS
    kvconn_run(task, batch, (size_t)batch->count, threads);
    Py_END_ALLOW_THREADS
}

static PyObject *ends(const struct batch *batch)
{
    PyObject *list = PyList_New(batch->count);
    for (Py_ssize_t i = 0; list && i < batch->count; i++) {
        PyObject *end = PyLong_FromLong(batch->jobs[i].end);
        if (!end || PyList_SetItem(list, i, end))
            Py_CLEAR(list);
    }
    return list;
}

static void read_one(void *context, size_t i)
{
    struct batch *batch = context;
    struct job *job = batch->jobs + i;
    job->end = kvconn_read_file(job->path, job->view.buf, (size_t)job->view.len, batch->direct);
}

static void write_one(void *context, size_t i)
{
    struct batch *batch = context;
    struct job *job = batch->jobs + i;
    job->end = kvconn_write_file(job->temporary, job->path, job->view.buf, (size_t)job->view.len,
                                 batch->direct, batch->sync);
}

static void hash_one(void *context, size_t i)
{
    struct job *job = ((struct batch *)context)->jobs + i;
    kvconn_xxh3_128(job->view.buf, (size_t)job->view.len, job->digest);
}

/* The lists may be changed by other threads meanwhile: what they hold is held by copies of them. */
static PyObject *copy_of(PyObject *list)
{
    return PyList_Check(list) ? PyList_GetSlice(list, 0, PyList_Size(list)) : Py_NewRef(list);
}

static PyObject *read_files(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *paths, *buffers, *answer = NULL;
    int threads;
    struct batch batch = {0};
    if (!PyArg_ParseTuple(arguments, "OOpi:read_files", &paths, &buffers, &batch.direct, &threads))
        return NULL;
    paths = copy_of(paths);
    if (paths && hold(&batch, buffers, PyBUF_WRITABLE, threads) && name_files(&batch, NULL, paths)) {
        run(read_one, &batch, threads);
        answer = ends(&batch);
    }
    let_go(&batch);
    Py_XDECREF(paths);
    return answer;
}

static PyObject *write_files(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *temporaries, *paths, *buffers, *answer = NULL;
    int threads;
    struct batch batch = {0};
    if (!PyArg_ParseTuple(arguments, "OOOppi:write_files", &temporaries, &paths, &buffers,
                          &batch.direct, &batch.sync, &threads))
        return NULL;
    temporaries = copy_of(temporaries);
    paths = copy_of(paths);
    if (temporaries && paths && hold(&batch, buffers, PyBUF_SIMPLE, threads) &&
        name_files(&batch, temporaries, paths)) {
        run(write_one, &batch, threads);
        answer = ends(&batch);
    }
    let_go(&batch);
    Py_XDECREF(temporaries);
    Py_XDECREF(paths);
    return answer;
}

static PyObject *digests(const struct batch *batch)
{
    PyObject *list = PyList_New(batch->count);
    for (Py_ssize_t i = 0; list && i < batch->count; i++) {
        PyObject *digest = PyBytes_FromStringAndSize((const char *)batch->jobs[i].digest, 16);
        if (!digest || PyList_SetItem(list, i, digest))
            Py_CLEAR(list);
    }
    return list;
}

static int are_long(const struct batch *batch)
{
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (batch->jobs[i].view.len < KVCONN_XXH3_LEAST) {
            PyErr_Format(PyExc_ValueError, "a buffer has %zd bytes: give at least %d",
                         batch->jobs[i].view.len, KVCONN_XXH3_LEAST);
            return 0;
        }
    return 1;
}

static PyObject *xxh3_128(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *buffers, *answer = NULL;
    int threads;
    struct batch batch = {0};
    if (!PyArg_ParseTuple(arguments, "Oi:xxh3_128", &buffers, &threads))
        return NULL;
    if (hold(&batch, buffers, PyBUF_SIMPLE, threads) && are_long(&batch)) {
        run(hash_one, &batch, threads);
        answer = digests(&batch);
    }
    let_go(&batch);
    return answer;
}

static PyMethodDef methods[] = {
    {"read_files", read_files, METH_VARARGS, "read_files(paths, buffers, direct, threads)"},
    {"write_files", write_files, METH_VARARGS,
     "write_files(temporaries, paths, buffers, direct, sync, threads)"},
    {"xxh3_128", xxh3_128, METH_VARARGS, "xxh3_128(buffers, threads)"},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kvconn_native._native",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModule_Create(&definition);
}
