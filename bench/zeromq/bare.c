/* A ZeroMQ subscriber that only counts: what receiving costs with libzmq, before anything is decided.
 *
 * bare ENDPOINT FILE: binds there, and keeps the number of messages so far in the first eight bytes
 * of FILE, which is mapped, so that looking at it costs nothing. Runs until it is killed. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zmq.h>

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: bare ENDPOINT FILE\n");
        return 2;
    }
    int file = open(argv[2], O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, sizeof(uint64_t)) != 0) {
        perror(argv[2]);
        return 1;
    }
    volatile uint64_t *count =
        mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, ZMQ_SUB);
    if (count == MAP_FAILED || zmq_bind(socket, argv[1]) != 0
        || zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0) != 0) {
        fprintf(stderr, "%s: %s\n", argv[1], zmq_strerror(zmq_errno()));
        return 1;
    }
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    while (zmq_msg_recv(&frame, socket, 0) >= 0)
        if (!zmq_msg_more(&frame))
            *count += 1;
    fprintf(stderr, "%s\n", zmq_strerror(zmq_errno()));
    return 1;
}
