/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_server_metrics.c - what GET /health says of a store that is in order, and of one that lacks
 * a device; and where it listens.
 */
#include "store_site.h"

#include "serve/server/metrics_http.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* The whole answer to a request. */
static const char *asked(const server_http *http, const char *request)
{
    static char answer[1 << 17];
    const char *port = strrchr(server_http_address(http), ':') + 1;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(peer, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(peer, request, strlen(request), 0), strlen(request));
    size_t used = 0;
    ssize_t came;
    while ((came = recv(peer, answer + used, sizeof answer - 1 - used, 0)) > 0)
        used += (size_t)came;
    assert_int_equal(came, 0);
    close(peer);
    answer[used] = '\0';
    return answer;
}

TEST(health_names_what_is_out_of_order)
{
    char message[256];
    server_http *http, *other;
    site *s = site_prepare(
        (site_shape){.disks = 2, .disk_bytes = 32 << 20, .unit_bytes = 65536, .fast = true});
    site_open(s);
    assert_ok(server_http_open(s->store, "127.0.0.1:0", &http, message, sizeof message));
    const char *answer = asked(http, "GET /health HTTP/1.1\r\n\r\n");
    assert_memory_equal(answer, "HTTP/1.1 200 OK\r\n", 17);
    assert_string_equal(strstr(answer, "\r\n\r\n"), "\r\n\r\nok\n");
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    answer = asked(http, "GET /health HTTP/1.1\r\n\r\n");
    assert_memory_equal(answer, "HTTP/1.1 503 ", 13);
    assert_non_null(strstr(answer, "\r\n\r\ndisk1: "));
    assert_int_equal(answer[strlen(answer) - 1], '\n');
    answer = asked(http, "GET /metrics HTTP/1.1\r\n\r\n");
    assert_memory_equal(answer, "HTTP/1.1 200 OK\r\n", 17);
    assert_non_null(strstr(answer, "disk1"));
    /* Its port is taken, and free again after its end. */
    char address[64];
    snprintf(address, sizeof address, "%s", server_http_address(http));
    assert_int_equal(server_http_open(s->store, address, &other, message, sizeof message),
                     KVT_E_LOCKED);
    assert_non_null(strstr(message, address));
    server_http_close(http);
    assert_ok(
        server_http_open(s->store, strrchr(address, ':') + 1, &other, message, sizeof message));
    assert_string_equal(server_http_address(other), address);
    server_http_close(other);
    server_http_close(NULL);
}
