/* A switch in user space between hosts that are network namespaces, with delay, jitter and loss: netem for kernels
 * that have none.
 *
 *   switch PID... -- RULE...       RULE = FROM:TO:DELAY_US:JITTER_US:LOSS_PERCENT, FROM and TO a host's number or *
 *
 * Host i is the network namespace of the i-th process. It gets a device tap0 with address 10.77.0.(10 + i), and its
 * loopback is brought up. Frames of a pair of hosts stay in order; of several rules the last that fits holds. Prints
 * "ready" once all is up; ends with its standard input, so never later than whoever started it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS = 16, FRAME = 1600, QUEUE = 1024 };

struct frame {
    uint64_t due_ns;
    int length;
    unsigned char bytes[FRAME];
};

struct path {
    double delay_ns, jitter_ns, loss;
    uint64_t last_due_ns;
    unsigned head, tail; /* head: the next to deliver; tail: one past the last */
    struct frame queue[QUEUE];
};

static struct path *paths[HOSTS][HOSTS];
static int taps[HOSTS], hosts;

static void die(const char *what, ...)
{
    va_list words;
    va_start(words, what);
    vfprintf(stderr, what, words);
    va_end(words);
    fprintf(stderr, ": %s\n", strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double draw(void) /* 0 … 1; xorshift64, Marsaglia 2003 */
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static void bring_up(int control, const char *name)
{
    struct ifreq request = {0};
    strcpy(request.ifr_name, name);
    if (ioctl(control, SIOCGIFFLAGS, &request))
        die("flags of %s", name);
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(control, SIOCSIFFLAGS, &request))
        die("bring %s up", name);
}

/* A tap in the namespace that this process is in; its last byte of hardware and network address says which host. */
static int make_tap(int host)
{
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK), control = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = {0};
    if (tap < 0)
        die("/dev/net/tun");
    strcpy(request.ifr_name, "tap0");
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (ioctl(tap, TUNSETIFF, &request))
        die("make tap0");
    unsigned char address[6] = {2, 0, 0, 0, 0, (unsigned char)(host + 1)};
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    memcpy(request.ifr_hwaddr.sa_data, address, sizeof address);
    if (ioctl(control, SIOCSIFHWADDR, &request))
        die("hardware address");
    struct sockaddr_in *network = (struct sockaddr_in *)&request.ifr_addr;
    memset(&request.ifr_addr, 0, sizeof request.ifr_addr);
    network->sin_family = AF_INET;
    network->sin_addr.s_addr = htonl((10u << 24 | 77u << 16) + 10u + (unsigned)host);
    if (ioctl(control, SIOCSIFADDR, &request))
        die("address");
    network->sin_addr.s_addr = htonl(0xffffff00u);
    if (ioctl(control, SIOCSIFNETMASK, &request))
        die("netmask");
    bring_up(control, "tap0");
    bring_up(control, "lo");
    close(control);
    return tap;
}

static void enter_and_make_tap(const char *pid)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%s/ns/net", pid);
    int home = open("/proc/self/ns/net", O_RDONLY), there = open(name, O_RDONLY);
    if (home < 0 || there < 0 || setns(there, CLONE_NEWNET))
        die("%s", name);
    taps[hosts] = make_tap(hosts);
    if (setns(home, CLONE_NEWNET))
        die("back home");
    close(home);
    close(there);
    hosts++;
}

static void obey(const char *rule)
{
    char from[8], to[8];
    double delay_us, jitter_us, loss_percent;
    if (sscanf(rule, "%7[^:]:%7[^:]:%lf:%lf:%lf", from, to, &delay_us, &jitter_us, &loss_percent) != 5) {
        fprintf(stderr, "%s: a rule is FROM:TO:DELAY_US:JITTER_US:LOSS_PERCENT\n", rule);
        exit(2);
    }
    for (int i = 0; i < hosts; i++)
        for (int j = 0; j < hosts; j++)
            if ((*from == '*' || atoi(from) == i) && (*to == '*' || atoi(to) == j)) {
                paths[i][j]->delay_ns = delay_us * 1e3;
                paths[i][j]->jitter_ns = jitter_us * 1e3;
                paths[i][j]->loss = loss_percent / 100;
            }
}

static void queue_frame(struct path *path, const unsigned char *bytes, int length, uint64_t now)
{
    if (path->tail - path->head == QUEUE || draw() < path->loss)
        return; /* as a real switch would, without a word */
    double wait_ns = path->delay_ns + (2 * draw() - 1) * path->jitter_ns;
    uint64_t due_ns = now + (uint64_t)(wait_ns > 0 ? wait_ns : 0);
    struct frame *frame = &path->queue[path->tail++ % QUEUE];
    frame->due_ns = path->last_due_ns = due_ns > path->last_due_ns ? due_ns : path->last_due_ns;
    frame->length = length;
    memcpy(frame->bytes, bytes, (size_t)length);
}

static void take_in(int from)
{
    unsigned char bytes[FRAME];
    int length;
    while ((length = (int)read(taps[from], bytes, sizeof bytes)) > 0) {
        int for_all = bytes[0] & 1, last = bytes[5];
        for (int to = 0; to < hosts; to++)
            if (to != from && (for_all || last == to + 1))
                queue_frame(paths[from][to], bytes, length, now_ns());
    }
}

/* Delivers what is due; returns when the next frame will be, UINT64_MAX if there is none. */
static uint64_t deliver(void)
{
    uint64_t next_ns = UINT64_MAX;
    for (int i = 0; i < hosts; i++)
        for (int j = 0; j < hosts; j++) {
            struct path *path = paths[i][j];
            for (; path->head != path->tail; path->head++) {
                struct frame *frame = &path->queue[path->head % QUEUE];
                if (frame->due_ns > now_ns()) {
                    next_ns = frame->due_ns < next_ns ? frame->due_ns : next_ns;
                    break;
                }
                if (write(taps[j], frame->bytes, (size_t)frame->length) < 0 && errno != EAGAIN && errno != ENOBUFS)
                    die("write to host %d", j);
            }
        }
    return next_ns;
}

int main(int count, char **words)
{
    int word = 1;
    for (; word < count && strcmp(words[word], "--"); word++) {
        if (hosts == HOSTS) {
            fprintf(stderr, "at most %d hosts\n", HOSTS);
            return 2;
        }
        enter_and_make_tap(words[word]);
    }
    for (int i = 0; i < hosts; i++)
        for (int j = 0; j < hosts; j++)
            if (!(paths[i][j] = calloc(1, sizeof *paths[i][j])))
                die("memory");
    for (word++; word < count; word++)
        obey(words[word]);
    /* Ranks that poll would keep the switch waiting; without the right to go first it is only slower. */
    mlockall(MCL_CURRENT);
    struct sched_param first = {.sched_priority = 50};
    if (sched_setscheduler(0, SCHED_FIFO, &first))
        perror("the switch does not go first");
    puts("ready");
    fflush(stdout);
    struct pollfd watched[HOSTS + 1];
    for (int i = 0; i < hosts; i++)
        watched[i] = (struct pollfd){.fd = taps[i], .events = POLLIN};
    watched[hosts] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        uint64_t next_ns = deliver(), now = now_ns(), wait_ns = next_ns > now ? next_ns - now : 0;
        struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000u), .tv_nsec = (long)(wait_ns % 1000000000u)};
        watched[hosts].revents = 0;
        if (ppoll(watched, (nfds_t)hosts + 1, next_ns == UINT64_MAX ? NULL : &wait, NULL) < 0 && errno != EINTR)
            die("poll");
        if (watched[hosts].revents)
            return 0; /* whoever started the switch has closed its input */
        for (int i = 0; i < hosts; i++)
            take_in(i);
    }
}
