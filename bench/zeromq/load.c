/* Tells of requests as gatekeepers do, as fast as they are taken, in blocks of many messages.
 *
 * load PORT CLIENTS: connects on loopback as a ZeroMQ publisher, waits until it is subscribed to,
 * and sends messages of six frames, of that many identifiers in turn. It writes ZMTP itself:
 * libzmq's publisher takes more CPU time for a message than the servers under test, and a server
 * that waits for its load cannot be measured. Runs until it is killed. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define MESSAGES 512
#define MESSAGE_BYTES_MAX 96
#define NAME_BYTES_MAX 20

static const char READY[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void put(int peer, const char *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t sent = send(peer, bytes + done, length - done, 0);
        if (sent <= 0)
            fail("send");
        done += (size_t)sent;
    }
}

static void get(int peer, char *bytes, size_t length) {
    if (recv(peer, bytes, length, MSG_WAITALL) != (ssize_t)length)
        fail("recv");
}

/* Reads one frame of up to 255 bytes and forgets it. */
static void skip(int peer) {
    unsigned char head[2];
    char body[255];
    get(peer, (char *)head, sizeof head);
    get(peer, body, head[1]);
}

static int publisher(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    if (peer < 0 || connect(peer, (struct sockaddr *)&to, sizeof to) != 0)
        fail("connect");
    char greeting[64] = {(char)0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    put(peer, greeting, sizeof greeting);
    get(peer, greeting, sizeof greeting);
    put(peer, READY, sizeof READY - 1);
    skip(peer); /* what it is, */
    skip(peer); /* and its subscription to everything */
    return peer;
}

static char *frame(char *at, int more, const char *bytes, size_t length) {
    *at++ = (char)more;
    *at++ = (char)length;
    return (char *)memcpy(at, bytes, length) + length;
}

static char *message(char *at, const char *name, const char *now, size_t digits) {
    at = frame(at, 1, "d", 2);
    at = frame(at, 1, "ACCEPTED", 8);
    at = frame(at, 1, name, strlen(name));
    at = frame(at, 1, now, digits);
    at = frame(at, 1, "", 0);
    return frame(at, 0, "", 0);
}

int main(int argc, char **argv) {
    size_t clients = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    char(*names)[NAME_BYTES_MAX] = calloc(clients, NAME_BYTES_MAX);
    if (clients == 0 || !names) {
        fprintf(stderr, "usage: load PORT CLIENTS\n");
        return 2;
    }
    for (size_t n = 0; n < clients; n++)
        snprintf(names[n], NAME_BYTES_MAX, "198.%zu.%zu.%zu", n >> 16 & 255, n >> 8 & 255, n & 255);
    int peer = publisher(atoi(argv[1]));
    static char block[MESSAGES * MESSAGE_BYTES_MAX];
    for (size_t sent = 0;;) {
        struct timeval now;
        gettimeofday(&now, NULL);
        unsigned long long ms = (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_usec / 1000;
        char text[24];
        int digits = snprintf(text, sizeof text, "%llu", ms);
        char *end = block;
        for (int n = 0; n < MESSAGES; n++)
            end = message(end, names[sent++ % clients], text, (size_t)digits);
        put(peer, block, (size_t)(end - block));
    }
}
